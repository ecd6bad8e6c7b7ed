"""Tiny trainings for both Lightning packages, and an independent reading of the traces they leave."""

from __future__ import annotations

import gzip
import importlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.steps.fit_state import FitContext, FitState
from lightning_perf.run_files.steps import STEPS

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


class Points(Dataset):
    """Points of two classes. `before` is called with the number of each one that is read."""

    def __init__(self, size: int, before: Callable[[int], object] = int) -> None:
        self.size, self.before = size, before

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        self.before(index)
        return torch.full((4,), index / self.size), torch.tensor(index % 2)


class Stream(IterableDataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        return iter(Points(self.size)[i] for i in range(self.size))


def loader(batches: int, batch_size: int = 2) -> DataLoader:
    return DataLoader(Points(batches * batch_size), batch_size)


def package(name: str) -> Any:
    return importlib.import_module(name)


def make_module(name: str = PACKAGES[0], **overrides: Any) -> Any:
    """A LightningModule of the named package; `overrides` replace its methods."""
    base = package(name).LightningModule

    class Net(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))

        def loss(self, batch: Any) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self.loss(batch)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            torch.arange(7).cumsum(0)  # an operator that nothing else here runs

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)

    return type("Net", (Net,), overrides)()


def logging_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
    """A training step that logs its loss."""
    loss: torch.Tensor = self.loss(batch)
    self.log("loss", loss)
    return loss


def manual_step(self: Any, batch: Any, batch_idx: int) -> None:
    """A training step of manual optimization."""
    optimizers = self.optimizers()
    for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()


def failing_step(error: BaseException, at: int) -> Callable[..., torch.Tensor]:
    """A training step that fails at a batch."""

    def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        if batch_idx == at:
            raise error
        loss: torch.Tensor = self.loss(batch)
        return loss

    return training_step


def failing(error: BaseException) -> Callable[..., Any]:
    """A function that fails."""

    def broken(*_: Any, **__: Any) -> Any:
        raise error

    return broken


def hooked(kind: str = "Hooked", name: str = PACKAGES[0], **hooks: Callable[..., Any]) -> Any:
    """A callback of the named package, of a class with these hooks."""
    return type(kind, (package(name).Callback,), hooks)()


def make_trainer(tmp_path: Path, callback: Any, name: str = PACKAGES[0], **options: Any) -> Any:
    callbacks = [callback, *options.pop("callbacks", [])] if callback is not None else options.pop("callbacks", [])
    return package(name).Trainer(
        **{**QUIET, "default_root_dir": tmp_path, "max_epochs": 1, **options}, callbacks=callbacks
    )


def recording_logger(folder: Path, name: str = PACKAGES[0]) -> Any:
    """A logger of the named package that draws curves: it keeps the calls of `log_metrics` as ``rows``."""
    base = package(f"{name}.loggers").Logger

    class Curves(base):  # type: ignore[misc, valid-type]
        name, version, save_dir = "curves", 0, str(folder)

        def __init__(self) -> None:
            super().__init__()
            self.rows: list[tuple[int, dict[str, float]]] = []

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            self.rows.append((-1 if step is None else step, dict(metrics)))

        def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
            pass

    return Curves()


def context(
    folder: Path | None = None,
    *,
    state: FitState | None = None,
    errors: ErrorReporter | None = None,
    device: str = "cpu",
    rank: int = 0,
    world_size: int = 1,
    **loop: Any,
) -> FitContext:
    """What the observers of a fit share, with a stand-in for its loop."""
    defaults = {"hook_times": None, "nodes": None, "product_parameters": lambda: None, "log_every": 4, "model": None}
    facts = defaults | loop
    stand_in: Any = SimpleNamespace(rank=rank, world_size=world_size, device=torch.device(device), **facts)
    return FitContext(stand_in, folder, errors or ErrorReporter(), state or FitState())


def trace_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.pt.trace.json.gz"))


@dataclass(frozen=True)
class Mark:
    name: str
    start: float
    end: float
    finished: bool

    def holds(self, other: Mark) -> bool:
        return self.start <= other.start and other.end <= self.end


def events(file: Path) -> list[dict[str, Any]]:
    with gzip.open(file, "rt") as stream:
        return [event for event in json.load(stream)["traceEvents"] if event.get("ph") == "X"]


def marks(file: Path, prefix: str) -> list[Mark]:
    found = [
        Mark(e["name"], e["ts"], e["ts"] + e["dur"], e["args"].get("finished", True))
        for e in events(file)
        if e["name"].startswith(prefix) and e["cat"] == "user_annotation"
    ]
    return sorted(found, key=lambda mark: mark.start)


def step_marks(file: Path) -> list[Mark]:
    return marks(file, "ProfilerStep#")


def step_numbers(folder: Path) -> list[list[int]]:
    """The numbers of the whole steps in each file."""
    return [[int(m.name.split("#")[1]) for m in step_marks(file) if m.finished] for file in trace_files(folder)]


def phases_by_step(file: Path) -> list[list[str]]:
    """For each step mark the names of the ranges in it, in order."""
    ranges = marks(file, "perf::")
    steps = step_marks(file)
    assert all(any(step.holds(inner) for step in steps) for inner in ranges), "a range outside of all steps"
    return [[inner.name.removeprefix("perf::") for inner in ranges if step.holds(inner)] for step in steps]


def samples(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    (file,) = folder.rglob(f"steps.rank{rank}.jsonl")
    return [sample._asdict() for sample in STEPS.read(file)]
