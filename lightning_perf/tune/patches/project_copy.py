"""Runs a script in an edited copy of its project, to see which values arrive at the Trainer, loader and optimizer."""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from torch.utils.data import DataLoader

from lightning_perf.tune.levers.loader import training_loader
from lightning_perf.tune.levers.optimizer import optimizers_of
from lightning_perf.tune.messages import Arguments, Order
from lightning_perf.tune.pairs import start_worker
from lightning_perf.tune.trainers.training import Training
from lightning_perf.workers.script import Script

_LOADER = ("batch_size", "drop_last", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
_OPTIMIZER = ("lr", "fused", "foreach")


def run_in_copy(order: Order, texts: Mapping[str, bytes], timeout_s: float) -> Arguments:
    """Train a step in a copy of the script's project with other texts of some files, and return its arguments."""
    assert order.script is not None
    copy = Path(tempfile.mkdtemp(dir=order.folder)) / "project"
    write_copy(order.script.root, copy, {Path(path): text for path, text in texts.items()})
    with start_worker(replace(order, scout=False, copy=str(copy))) as worker:
        return worker.receive(Arguments, timeout_s=timeout_s)


def write_copy(root: Path, copy: Path, texts: Mapping[Path, bytes]) -> None:
    """Make a copy of a folder with other texts of some files. Everything else in it are links."""
    copy.mkdir()
    for entry in root.iterdir():
        if entry in texts:
            (copy / entry.name).write_bytes(texts[entry])
        elif entry.is_dir() and any(entry in path.parents for path in texts):
            write_copy(entry, copy / entry.name, texts)
        else:
            (copy / entry.name).symlink_to(entry)


def move_to_copy(script: Script, copy: Path) -> Script:
    """Return the script in a copy of its project, and let this process find modules and files there."""
    root, here = script.root, Path.cwd().resolve()

    def moved(word: str) -> str:
        return str(copy) + word[len(str(root)) :] if word == str(root) or word.startswith(f"{root}{os.sep}") else word

    sys.path[:] = [word if "site-packages" in word else moved(word) for word in sys.path]
    if here.is_relative_to(root):
        os.chdir(copy / here.relative_to(root))
    return replace(script, words=tuple(map(moved, script.words)))


def arguments_of(training: Training) -> Arguments:
    """Return the simple arguments of the calls that made a training."""
    loader, optimizers = training_loader(training), optimizers_of(training) or ()
    values: dict[str, dict[str, Any]] = {
        # The names of folders may have the time in them.
        "Trainer": {name: value for name, value in training.trainer.items() if name != "default_root_dir"},
        "DataLoader": {} if isinstance(loader, str) else {name: getattr(loader, name) for name in _LOADER},
        "optimizer": {name: optimizers[0].defaults.get(name) for name in _OPTIMIZER} if len(optimizers) == 1 else {},
    }
    simple = (bool, int, float, str, type(None))
    return Arguments(
        {
            place: {name: value for name, value in given.items() if isinstance(value, simple)}
            for place, given in values.items()
        }
    )


def parameters_of(training: Training, trainer: Any) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Return the parameters of the classes that may pass values on to the calls, by the place of a `Setting`."""

    def names(*kinds: Any) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(inspect.signature(kind.__init__).parameters)[1:] for kind in kinds)

    owner = training.module if training.data is None else training.data
    optimizers = {type(optimizer) for optimizer in optimizers_of(training) or ()}
    return {"Trainer": names(trainer), "DataLoader": names(DataLoader, type(owner)), "optimizer": names(*optimizers)}
