"""The tokens and the padding of a batch."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from lightning_perf.callbacks.steps.batch_parts import IGNORED_LABEL, Padding, count_padding, find_sequences

TOKENS = torch.zeros(4, 16, dtype=torch.int64)
LABELS = torch.ones(4, 16, dtype=torch.int64)
MASK = torch.ones(4, 16, dtype=torch.bool)


@dataclass
class Batch:
    weight: torch.Tensor
    input_ids: torch.Tensor


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        (TOKENS, 64),
        (TOKENS.to(torch.int32), 64),
        ((TOKENS, LABELS), 64),
        ([[TOKENS], {"y": LABELS}], 64),
        ({"image": torch.zeros(4, 3), "input_ids": TOKENS}, 64),
        (UserDict({"input_ids": TOKENS, "attention_mask": MASK}), 64),
        (Batch(torch.zeros(4), TOKENS), 64),
        ({"x": torch.zeros(4, 16), "categories": TOKENS}, None),
        ((TOKENS, torch.zeros(4)), None),
        (torch.zeros(4, 16), None),
        (torch.zeros(4, 16, dtype=torch.uint8), None),
        (MASK, None),
        (torch.zeros(4, 1, dtype=torch.int64), None),
        (torch.zeros(4, 16, 2, dtype=torch.int64), None),
        ((torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.int64)), None),
        ("text", None),
        ((), None),
        (None, None),
    ],
)
def test_tokens_of_a_batch(batch: Any, tokens: int | None) -> None:
    found = find_sequences(batch)
    assert (None if found is None else found.tokens) == tokens


def test_labels_are_those_of_that_name_or_the_next_integers_of_the_same_shape() -> None:
    other, longer = torch.zeros(4, 16, dtype=torch.int64), torch.zeros(4, 17, dtype=torch.int64)
    named = find_sequences({"input_ids": TOKENS, "token_type_ids": other, "labels": LABELS})
    assert named is not None
    assert named.labels is LABELS
    assert named.mask is None
    masked = find_sequences({"attention_mask": MASK, "input_ids": TOKENS, "labels": longer})
    assert masked is not None
    assert masked.mask is MASK
    assert masked.labels is None
    unnamed = find_sequences((TOKENS, torch.zeros(4, 16), LABELS))
    assert unnamed is not None
    assert unnamed.labels is LABELS


@pytest.mark.parametrize("labels", [False, True])
def test_padding_is_counted_as_row_by_row_in_python(labels: bool) -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        rows, length = int(generator.integers(1, 6)), int(generator.integers(2, 9))
        lengths = generator.integers(0, length + 1, size=rows).tolist()
        marks = np.full((rows, length), IGNORED_LABEL if labels else 0)
        for row, real in zip(marks, lengths, strict=True):
            row[:real] = 1
            if labels and real > 1:
                row[: generator.integers(0, real)] = IGNORED_LABEL  # a prompt is no padding
        padding = sum(length - real for real in lengths)
        assert count_padding(marks, labels=labels) == Padding(rows * length, padding, rows * (length - max(lengths)))


def test_a_mask_may_pad_on_the_left() -> None:
    assert count_padding(np.array([[0, 0, 1, 1], [0, 1, 1, 1]]), labels=False) == Padding(8, 3, 2)
