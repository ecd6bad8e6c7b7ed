"""Batches of any make: the hash ends within its limits, is the same again, and leaves everything as it was."""

import random
import tracemalloc
import warnings
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_perf.callbacks.steps.batch_parts import batch_samples, find_sequences
from lightning_perf.compare.records import fingerprint
from lightning_perf.compare.records.fingerprint import NOT_HASHED, fact_of_hash, hash_tensors
from tests.compare.records.test_fingerprint import Augmenting, Computing, Guarded, Labeled, draws, graph, ring

Pair = namedtuple("Pair", "first second")


@dataclass
class Record:
    first: Any
    second: Any


class Drawing(Augmenting):
    """Uses up random numbers of every kind when it is read."""

    def __getitem__(self, index: Any) -> Any:
        if index >= 3:
            raise IndexError
        return random.random() + np.random.rand() + torch.rand(2)

    def __len__(self) -> int:
        return int(torch.randint(3, ()))


class Holder:
    def __init__(self, inner: Any) -> None:
        self.inner, self.itself = inner, self


def looped(inner: Any) -> Any:
    batch = {"inner": inner}
    batch["again"] = [batch, {"once more": batch}]
    return batch


LEAVES: tuple[Any, ...] = (
    lambda: None,
    lambda: "text \ud800",
    lambda: b"bytes",
    lambda: 10**5000,
    lambda: float("nan"),
    lambda: np.float32(1.5),
    lambda: torch.float32,
    lambda: range(10**12),
    lambda: {3, "a", None},
    lambda: [1, 2, 3] * 100,
    lambda: iter([torch.rand(2)]),
    lambda: draws(1),
    lambda: Drawing([torch.ones(2)]),
    Guarded,
    Computing,
    lambda: Labeled.make(torch),
    lambda: ring(12),
    lambda: graph(9),
    lambda: torch.arange(6.0).reshape(2, 3),
    lambda: torch.ones(3, 1, 2).expand(3, 4, 2).transpose(0, 2),
    lambda: torch.zeros(1).expand(2**30, 2**10),
    lambda: torch.ones(2, 2, dtype=torch.complex64).conj(),
    lambda: torch.eye(3).to_sparse(),
    lambda: torch.empty(2**20, 2**20, device="meta"),
    lambda: torch.zeros(0, 4),
    lambda: torch.ones(4, dtype=torch.bfloat16)[::2],
    lambda: np.broadcast_to(np.float64(2), (2**40,)),
    lambda: np.asfortranarray(np.ones((3, 4))),
    lambda: np.array(["a", None, 3], dtype=object),
    lambda: np.broadcast_to(np.array(["a"], dtype=object), (2**30,)),
    lambda: np.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
)

WRAPPERS: tuple[Any, ...] = (
    list,
    tuple,
    deque,
    dict,
    OrderedDict,
    UserDict,
    lambda pairs: defaultdict(list, pairs),
    lambda pairs: Pair(pairs, 1),
    lambda pairs: Record(pairs, "second"),
    lambda pairs: SimpleNamespace(parts=pairs),
    Holder,
    looped,
    Drawing,
)


def made(recipe: Any) -> Any:
    """Make a batch anew from its recipe: the number of a leaf, or the number of a wrapper and what is in it."""
    if isinstance(recipe, int):
        return LEAVES[recipe]()
    wrapper, inner = recipe
    parts = [made(each) for each in inner]
    return WRAPPERS[wrapper]([(f"part{number}", part) for number, part in enumerate(parts)])


RECIPES = st.recursive(
    st.integers(0, len(LEAVES) - 1),
    lambda inner: st.tuples(st.integers(0, len(WRAPPERS) - 1), st.lists(inner, max_size=4)),
    max_leaves=12,
)


def generator_states() -> tuple[Any, ...]:
    numpy_state: Any = np.random.get_state()
    return random.getstate(), numpy_state[1].tolist(), numpy_state[2], torch.get_rng_state().tolist()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recipe=RECIPES)
def test_any_batch(recipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[int] = []
    of_walk, children = fingerprint._Walk, fingerprint._Walk._children

    def counted(self: Any, name: str, value: Any) -> Any:
        visited.append(id(value))
        return children(self, name, value)

    monkeypatch.setattr(of_walk, "_children", counted)
    batch = made(recipe)
    before = generator_states()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tracemalloc.start()
        try:
            found = fact_of_hash(lambda: hash_tensors(batch))
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        samples = batch_samples(batch)
        find_sequences(batch)
    assert generator_states() == before
    assert caught == []
    assert found is None or not found.startswith(f"{NOT_HASHED}reading it failed"), found
    assert len(visited) <= fingerprint.MAX_OBJECTS
    assert peak_bytes < 2**24
    assert samples is None or samples >= 0
    assert fact_of_hash(lambda: hash_tensors(made(recipe))) == found, "the same again, at other addresses"
