"""Counts of what a batch holds: exact for plain data, and no code of the batch runs."""

from __future__ import annotations

import random
from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from lightning_perf.callbacks.recording.window_notes import MAX_OBJECTS, count_contents
from lightning_perf.trace.description import Batch

Pair = namedtuple("Pair", "first second")


@dataclass
class Graph:
    nodes: torch.Tensor
    edges: Any = None


class Untouchable(Sequence[Any]):
    """Augments when it is read, and fails."""

    def __init__(self) -> None:
        self.held = torch.zeros(4)

    def _touched(self, *_: Any) -> Any:
        random.random()
        raise AssertionError("touched")

    __getitem__ = __len__ = __iter__ = __getattr__ = __eq__ = __bool__ = __reduce_ex__ = _touched
    __hash__ = _touched


class Labels(torch.Tensor):
    """A tensor subclass that lets no function of torch see it."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise AssertionError("touched")


class Items(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("touched")


def cyclic() -> list[Any]:
    batch: list[Any] = [torch.zeros(2)]
    batch.append(batch)
    return batch


@pytest.mark.parametrize(
    ("batch", "tensors", "tensor_bytes", "objects", "object_bytes"),
    [
        (torch.zeros(3, dtype=torch.float64), 1, 24, 0, 0),
        ([torch.zeros(2), torch.zeros(3)], 2, 20, 1, 0),
        ({"a": torch.zeros(1), "bc": [1, 2.5, None]}, 1, 4, 7, 3),
        (OrderedDict(a=Pair(torch.zeros(1), "xyz")), 1, 4, 4, 4),
        (Graph(torch.zeros(2), {torch.zeros(1)}), 2, 12, 2, 0),
        (torch.zeros(1).expand(1000), 1, 4000, 0, 0),
        ([np.zeros((2, 3), dtype=np.float32), b"ab"], 0, 0, 3, 26),
        (torch.zeros(4).as_subclass(Labels), 1, 16, 0, 0),
        (Items([torch.zeros(1)]), 1, 4, 1, 0),
        (cyclic(), 1, 8, 2, 0),
        ([torch.nn.Linear(2, 2), print, Graph], 0, 0, 4, 0),
    ],
)
def test_counts(batch: Any, tensors: int, tensor_bytes: int, objects: int, object_bytes: int) -> None:
    assert count_contents(batch) == Batch(tensors, tensor_bytes, objects, object_bytes)


def test_a_batch_that_augments_when_it_is_read_is_not_read() -> None:
    before = random.getstate()
    assert count_contents([Untouchable()]) == Batch(tensors=1, tensor_bytes=16, objects=2, object_bytes=0)
    assert random.getstate() == before


def test_a_generator_stays_whole() -> None:
    batch = (torch.zeros(1) for _ in range(3))
    assert count_contents([batch]).objects == 2
    assert len(list(batch)) == 3


def test_a_large_batch_is_counted_in_part() -> None:
    counted = count_contents([torch.zeros(1) for _ in range(2 * MAX_OBJECTS)])
    assert not counted.complete
    assert counted.tensors <= MAX_OBJECTS
