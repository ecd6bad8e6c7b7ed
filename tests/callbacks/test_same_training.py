"""With the callback, a training is the same bit for bit: no hook reads a batch, or draws a random number."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_perf import PerfCallback, PrecisionCallback
from tests.callbacks.run_record.test_fit_record import only
from tests.callbacks.training import Points, make_module, make_trainer
from tests.compare.records.test_fingerprint import Guarded
from tests.compare.records.test_fingerprint_fuzz import generator_states

OURS = [kind for kind in PerfCallback.__mro__ if kind.__module__.startswith("lightning_perf.")]
HOOKS = {name for kind in OURS for name in vars(kind) if name.startswith("on_")} | {"setup", "teardown"}


class Augmented(Sequence):
    """Draws random numbers of every kind each time that it is read."""

    def __init__(self, rows: list[torch.Tensor], rng: np.random.Generator) -> None:
        self.rows, self.rng = rows, rng

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if index >= len(self.rows):
            raise IndexError(index)
        drawn = random.random() + np.random.rand() + self.rng.random()
        return self.rows[index] + drawn * torch.rand(4)


class Noisy(Points):
    """A data set that draws random numbers when anything of it is read."""

    @property
    def samples(self) -> Any:
        return [torch.rand(2)]

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index)[0] + torch.rand(4) + random.random()


class Node:
    def __init__(self, row: torch.Tensor) -> None:
        self.row = row
        self.neighbors: list[Node] = []


def augmented(rows: list[torch.Tensor]) -> Any:
    return Augmented(rows, np.random.default_rng(int(torch.randint(100, ()))))


def graph(rows: list[torch.Tensor]) -> Any:
    nodes = [Node(rows[number % len(rows)]) for number in range(36)]
    for node in nodes:
        node.neighbors = [other for other in nodes if other is not node]
    return nodes


def labeled(rows: list[torch.Tensor]) -> Any:
    class LabelTensor(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(f"called {func}")

    return torch.stack(rows).as_subclass(LabelTensor)


def plain_rows(batch: Any) -> torch.Tensor:
    if isinstance(batch, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            return torch.Tensor.detach(batch)
    return torch.stack([each.row if isinstance(each, Node) else each for each in batch])


def train(
    folder: Path, collate: Callable[[list[torch.Tensor]], Any], callback: Any, **options: Any
) -> tuple[list[torch.Tensor], Any]:
    """Train on batches of some make, and return the weights and the states of all generators."""

    def step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.layer(plain_rows(batch)).tanh().square().mean() * random.random()

    def keep(self: Any, batch: Any, *args: Any) -> Any:
        return batch

    module = make_module(training_step=step, transfer_batch_to_device=keep)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    data = Noisy(24)
    for owner in (module, data):
        vars(owner)["held"] = [augmented([torch.zeros(4)]), {"guarded": Guarded()}, Guarded()]
    trainer = make_trainer(folder, callback, **options)
    trainer.fit(module, DataLoader(data, 2, shuffle=True, collate_fn=collate))
    weights = [parameter.detach().clone() for parameter in module.parameters()]
    assert all(bool(weight.isfinite().all()) for weight in weights)
    return weights, generator_states()


def watched(kind: type, **options: Any) -> Any:
    """Return a callback that fails if one of its own hooks changes the state of a generator."""

    def checked(name: str) -> Any:
        def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
            before = generator_states()
            result = getattr(super(made, self), name)(*args, **kwargs)
            assert generator_states() == before, f"{name} drew a random number"
            seen.add(name)
            return result

        return hook

    seen: set[str] = set()
    made = type(kind.__name__, (kind,), {name: checked(name) for name in HOOKS if hasattr(kind, name)})
    quick = {"skip_first": 1, "warmup": 0, "active": 2, "report": "none", "probe": False}
    callback = made(**(quick if kind is PerfCallback else {}), **options)
    callback.seen = seen
    return callback


@pytest.mark.parametrize("collate", [augmented, graph, labeled])
def test_batches_of_any_make(tmp_path: Path, collate: Any) -> None:
    alone = train(tmp_path / "a", collate, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        callback = watched(PerfCallback)
        with_callback = train(tmp_path / "b", collate, callback)
    assert [str(each.message) for each in caught if "PerfCallback" in str(each.message)] == []
    assert all(map(torch.equal, alone[0], with_callback[0]))
    assert alone[1] == with_callback[1]
    assert {"on_train_start", "on_train_batch_start", "on_train_batch_end", "on_fit_end"} <= callback.seen
    first_batch = str(only(tmp_path / "b").facts["data.first_batch"])
    assert not first_batch.startswith("not hashed")


@pytest.mark.parametrize(
    ("kind", "options", "trainer"),
    [
        (PerfCallback, {"forecast": 1.0, "profile_memory": True, "with_stack": True, "capture_slow_steps": True}, {}),
        (
            PerfCallback,
            {"shadow": 3, "precision": "bf16-mixed", "log_report": True},
            {"accumulate_grad_batches": 2},
        ),
        (PrecisionCallback, {"precision": "bf16-mixed", "guard_steps": 2, "diagnose": "gradients"}, {}),
    ],
    ids=["recording", "precision", "precision callback"],
)
def test_every_hook_with_every_option(
    tmp_path: Path, kind: type, options: dict[str, Any], trainer: dict[str, Any]
) -> None:
    precision = {"precision": options["precision"]} if "precision" in options else {}
    alone = train(tmp_path / "a", torch.stack, None, **precision, **trainer)
    with_callback = train(tmp_path / "b", torch.stack, watched(kind, **options), **trainer)
    assert all(map(torch.equal, alone[0], with_callback[0]))
    assert alone[1] == with_callback[1]
