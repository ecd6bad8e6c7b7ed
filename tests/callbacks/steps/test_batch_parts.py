"""The size, the tensors, the tokens and the padding of a batch of any make."""

from __future__ import annotations

from collections import OrderedDict, UserDict, UserList, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from lightning_perf.callbacks.steps.batch_parts import (
    IGNORED_LABEL,
    MOST_OBJECTS,
    Padding,
    batch_samples,
    count_padding,
    find_sequences,
)
from tests.compare.records.test_fingerprint import Augmenting, Computing, Guarded, Labeled, draws

Pair = namedtuple("Pair", "name image")


@dataclass(slots=True)
class Slots:
    name: str
    image: torch.Tensor


@dataclass
class Batch:
    name: str
    image: torch.Tensor


class TensorDict:
    """Stores what the class of that name stores; reading anything else is an error."""

    def __init__(self, content: dict[str, Any], batch_size: tuple[int, ...]) -> None:
        self._tensordict = content
        self._batch_size = torch.Size(batch_size)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")

    def __getitem__(self, name: str) -> Any:
        raise AssertionError("read")


class TensorClass:
    def __init__(self, inner: TensorDict) -> None:
        self._tensordict = inner


class Content(torch.Tensor):
    """A tensor whose class computes every operation."""

    @staticmethod
    def __new__(cls, rows: int) -> Content:
        return torch.Tensor._make_wrapper_subclass(cls, (rows, 2), dtype=torch.int64)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise AssertionError(f"called {func}")


def cycle() -> Any:
    batch: dict[str, Any] = {}
    batch["self"] = [batch, torch.zeros(7, 2)]
    return batch


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (UserDict(x=torch.zeros(5, 2)), 5),
        (UserList([torch.zeros(5, 2)]), 5),
        (OrderedDict(x=torch.zeros(5, 2)), 5),
        (Pair("n", torch.zeros(5, 2)), 5),
        (Slots("n", torch.zeros(5, 2)), 5),
        (Batch("n", torch.zeros(6, 1)), 6),
        (torch.zeros(5, 2), 5),
        ([torch.zeros(4), torch.zeros(7)], 4),
        ({"meta": ["a", "b"], "x": {"y": (torch.zeros(3, 3),)}}, 3),
        (torch.tensor(1.0), None),
        ((torch.tensor(1.0), torch.zeros(2)), 2),
        (None, None),
        ("text", None),
        (Batch, None),
        ([], None),
        (np.zeros((5, 2)), 5),
        (Labeled.make(torch), 3),
        ({"x": Labeled.make(torch)}, 3),
        (Content(4), 4),
        (TensorDict({"x": torch.zeros(6, 4, 2)}, (6,)), 6),
        (TensorDict({"x": torch.zeros(6, 4, 2)}, (6, 4)), 6),
        (TensorDict({"x": torch.zeros(6, 2)}, ()), 6),
        ({"inner": TensorDict({"x": torch.zeros(6, 2)}, (6,))}, 6),
        (TensorClass(TensorDict({"x": torch.zeros(6, 2)}, (6,))), 6),
        (torch.zeros(5, 2, device="meta"), 5),
        (cycle(), 7),
        (Augmenting([torch.zeros(5)]), None),
        ([Augmenting([torch.zeros(5)]), torch.zeros(3)], 3),
        (Guarded(), None),
        (Computing(), None),
        ([draws(1), torch.zeros(3)], 3),
        (["text"] * (MOST_OBJECTS + 1) + [torch.zeros(3)], None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_samples(batch: Any, samples: int | None) -> None:
    assert batch_samples(batch) == samples


def test_tokens_in_a_tensor_dict_and_in_a_subclass() -> None:
    tokens = torch.zeros(4, 16, dtype=torch.int64)
    inner = TensorDict({"input_ids": tokens, "attention_mask": tokens}, (4,))
    for batch in (inner, TensorClass(inner), {"input_ids": torch.nn.Parameter(tokens, requires_grad=False)}):
        found = find_sequences(batch)
        assert found is not None
        assert found.tokens == 64
    assert find_sequences(Content(4)) is not None
    assert find_sequences(Labeled.make(torch)) is None


TOKENS = torch.zeros(4, 16, dtype=torch.int64)
LABELS = torch.ones(4, 16, dtype=torch.int64)
MASK = torch.ones(4, 16, dtype=torch.bool)


@dataclass
class SimpleBatch:
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
        (SimpleBatch(torch.zeros(4), TOKENS), 64),
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


@pytest.mark.parametrize(
    ("batch", "labels", "mask"),
    [
        ({"input_ids": TOKENS, "token_type_ids": torch.zeros_like(TOKENS), "labels": LABELS}, LABELS, None),
        ({"attention_mask": MASK, "input_ids": TOKENS, "labels": torch.zeros(4, 17, dtype=torch.int64)}, None, MASK),
        ((TOKENS, torch.zeros(4, 16), LABELS), LABELS, None),
    ],
)
def test_labels_are_those_of_that_name_or_the_next_integers_of_the_same_shape(
    batch: Any, labels: torch.Tensor | None, mask: torch.Tensor | None
) -> None:
    found: Any = find_sequences(batch)
    assert found.labels is labels
    assert found.mask is mask


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
