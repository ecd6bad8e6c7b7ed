"""The tokens of the recorded steps: which steps count, which batches are looked at, and the parameters of products."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lightning_perf.callbacks.recording.tokens import MOST_BATCHES, TokenCounter, product_parameters
from lightning_perf.callbacks.steps.batch_parts import IGNORED_LABEL
from lightning_perf.callbacks.steps.fit_state import FitState
from recipes.tinylm.model import GPT


def batch(rows: int, length: int, real: int) -> dict[str, torch.Tensor]:
    labels = torch.full((rows, length), IGNORED_LABEL)
    labels[:, :real] = 1
    return {"input_ids": torch.ones(rows, length, dtype=torch.int64), "labels": labels}


class Loop:
    def __init__(self) -> None:
        self.state = FitState()
        self.counter = TokenCounter(self.state, lambda: 10)

    def step(self, *batches: Any, profiling: bool = True, recording: bool = True) -> None:
        self.state.profiling, self.state.recording = profiling, recording
        self.counter.on_step_start()
        for each in batches:
            self.counter.add_batch(each)
        self.counter.on_step_end()


def test_recorded_steps_count_and_padding_also_in_the_warm_up() -> None:
    loop = Loop()
    loop.step(batch(2, 100, 1), profiling=False, recording=False)
    loop.step(batch(2, 10, 5), recording=False)
    loop.step(batch(2, 8, 8), batch(4, 4, 4))
    loop.step(batch(2, 6, 6))
    assert loop.counter.facts() == {
        "parameters": 10,
        "steps": 2,
        "tokens": 16 + 16 + 12,
        "counted": 20 + 16 + 16 + 12,
        "padding": 10,
        "beyond_longest": 10,
    }
    loop.counter.start()
    assert loop.counter.facts() is None


def test_a_step_that_is_cut_off_or_has_other_batches_does_not_count() -> None:
    loop = Loop()
    loop.step(batch(2, 8, 8))
    loop.step(batch(2, 8, 8), (torch.zeros(3, 3),))
    loop.counter.on_step_start()
    loop.counter.add_batch(batch(2, 8, 8))  # the step is dropped
    facts = loop.counter.facts()
    assert facts is not None
    assert (facts["steps"], facts["tokens"]) == (1, 16)


def test_labels_that_are_never_ignored_are_no_evidence_of_a_lack_of_padding() -> None:
    loop = Loop()
    loop.step(batch(2, 8, 8))
    facts = loop.counter.facts()
    assert facts is not None
    assert "padding" not in facts
    masked = Loop()
    masked.step({"input_ids": torch.ones(2, 4, dtype=torch.int64), "attention_mask": torch.ones(2, 4)})
    facts = masked.counter.facts()
    assert facts is not None
    assert facts["padding"] == 0
    assert facts["counted"] == 8


def test_few_batches_are_kept_and_odd_ones_are_no_error() -> None:
    loop = Loop()
    loop.step(*[batch(1, 4, 2) for _ in range(MOST_BATCHES + 5)])
    endless: list[Any] = []
    endless.append(endless)
    loop.step(endless)
    facts = loop.counter.facts()
    assert facts is not None
    assert facts["counted"] == 4 * MOST_BATCHES


def test_parameters_of_products_include_a_tied_table_but_no_other() -> None:
    layers, width, vocabulary, context = 2, 8, 32, 16
    blocks = 12 * width**2 + 13 * width  # matrices, biases and the parameters of two norms
    tied = GPT(vocabulary, context, layers=layers, heads=2, width=width)
    assert product_parameters(tied) == layers * blocks + 2 * width + vocabulary * width
    assert product_parameters(nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 3, bias=False))) == 12
    assert product_parameters(nn.LazyLinear(4)) == 0
