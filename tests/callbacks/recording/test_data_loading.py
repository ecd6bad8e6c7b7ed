from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from lightning_perf.callbacks.recording.data_loading import data_loading, reaches_model
from lightning_perf.trace.description import DataLoading
from lightning_perf.trace.reader import read_trace
from tests.callbacks.perf_training import fit, quick
from tests.callbacks.training import trace_files

MODEL = torch.nn.Sequential(torch.nn.Linear(2, 2))
TENSORS = TensorDataset(torch.zeros(8, 2))


def facts(loaders: Any) -> dict[str, Any]:
    return data_loading(training_on(loaders, 4))


def training_on(loaders: Any, batches: int | float, limit: float = 1.0) -> Any:
    return SimpleNamespace(
        train_dataloader=loaders, lightning_module=MODEL, num_training_batches=batches, limit_train_batches=limit
    )


@pytest.mark.parametrize(
    ("batches", "limit", "noted"),
    [(4, 1.0, 4), (1, 1.0, 1), (float("inf"), 1.0, None), (1, 1, 1), (1, 0.1, None), (3, 3, 3)],
)
def test_the_batches_of_an_epoch(batches: float, limit: float, noted: int | None) -> None:
    assert data_loading(training_on(DataLoader(TENSORS), batches, limit))["batches_per_epoch"] == noted


class Episodes(IterableDataset[Any]):
    """Steps of an agent, which the model plays."""

    def __init__(self, play: Any) -> None:
        self.play = play

    def __iter__(self) -> Iterator[Any]:
        yield self.play()


class Items(Dataset[Any]):
    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


class Agent:
    def __init__(self, policy: torch.nn.Module) -> None:
        self.policy = policy

    def play(self) -> int:
        return 1


def test_a_loader_of_tensors() -> None:
    assert facts(DataLoader(Subset(TENSORS, [1, 2]), batch_size=2)) == {
        "kind": "map", "workers": 0, "batch_size": 2, "pin_memory": False, "persistent_workers": False,
        "in_memory": True, "batched": False, "uses_model": False, "dataset": "TensorDataset", "collate": None,
        "container": None, "sampler": None, "order": "SequentialSampler", "batches_per_epoch": 4,
    }  # fmt: skip


class Buckets(BatchSampler):
    """A sampler of the user."""


def pad(samples: list[Any]) -> list[Any]:
    return samples


LARGE = Items(names=["a"] * 10_000, samples=[("a", 1)] * 30_000, tensor=torch.zeros(90_000))
BATCHES = BatchSampler(SequentialSampler(TENSORS), 4, drop_last=False)


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        (DataLoader(TENSORS, collate_fn=pad), {"collate": "pad", "order": "SequentialSampler", "sampler": None}),
        (DataLoader(TENSORS, shuffle=True), {"order": "RandomSampler"}),
        (DataLoader(LARGE), {"container": "samples: 30,000 objects in a list"}),
        (DataLoader(Subset(Items(inner=LARGE), [1])), {"container": "dataset.inner.samples: 30,000 objects in a list"}),
        (DataLoader(Items(names=["a"] * 9_999)), {"container": None}),
        (DataLoader(TENSORS, batch_sampler=Buckets(SequentialSampler(TENSORS), 4, False)), {"sampler": "Buckets"}),
        (DataLoader(TENSORS, sampler=Episodes(lambda: 1)), {"sampler": "Episodes"}),
        (DataLoader(TENSORS, batch_size=None, sampler=BATCHES), {"batched": True, "batch_size": 4}),
    ],
)
def test_facts_of_a_loader(loader: Any, expected: dict[str, Any]) -> None:
    found = facts(loader)
    assert {name: found[name] for name in expected} == expected


def test_of_several_loaders_the_one_that_allows_least_speaks() -> None:
    stream = DataLoader(Episodes(lambda: 1))
    assert facts({"a": DataLoader(TENSORS), "b": [stream]})["kind"] == "iterable"
    assert facts([DataLoader(TENSORS), object()])["kind"] == "other"
    assert facts([stream, DataLoader(Items(model=MODEL))])["uses_model"] is True
    assert facts([]) == {}


def test_of_several_loaders_only_common_facts_are_given() -> None:
    # Measured: the advice was to index the tensors of one loader, and the dataset of the other one slept.
    found = facts([DataLoader(TENSORS, batch_size=32), DataLoader(LARGE, batch_size=16, num_workers=0)])
    assert (found["kind"], found["workers"]) == ("map", 0)
    assert not found.keys() & {"in_memory", "batch_size", "dataset", "container"}
    assert facts([DataLoader(TENSORS, batch_size=32)] * 2)["in_memory"] is True


@pytest.mark.parametrize(
    "held",
    [
        MODEL,
        MODEL[0],
        MODEL[0].weight,
        Agent(MODEL),
        Agent(MODEL).play,
        [{"agents": (Agent(MODEL[0]),)}],
        functools.partial(print, MODEL),
        (lambda model: lambda: model)(MODEL),
    ],
    ids=["model", "layer", "weight", "agent", "method", "nested", "partial", "closure"],
)
def test_data_that_depend_on_the_model(held: Any) -> None:
    assert reaches_model(Items(held=held), MODEL)


def test_modules_of_other_purpose_are_no_model() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert not reaches_model(Items(transform=torch.nn.ReLU(), other=torch.nn.Linear(2, 2), ring=ring), MODEL)


def test_the_trace_says_how_batches_are_made(tmp_path: Path) -> None:
    fit(tmp_path, 8, callback=quick(skip_first=2))
    (file,) = trace_files(tmp_path)
    loader = read_trace(file).metadata.loader
    assert isinstance(loader, DataLoading)
    assert (loader.kind, loader.workers, loader.batch_size, loader.uses_model) == ("map", 0, 2, False)
