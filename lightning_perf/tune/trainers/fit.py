"""A fit of Lightning in a trial: the user's module, data and Trainer, without settings that would end or slow it."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from lightning_perf.callbacks.lightning_compat import LightningCallback, Module, Trainer
from lightning_perf.callbacks.perf import PerfCallback
from lightning_perf.callbacks.precision_callback import PrecisionCallback
from lightning_perf.tune.errors import TrialError
from lightning_perf.tune.levers.lever import Change, Lever
from lightning_perf.tune.levers.loader import training_loader
from lightning_perf.tune.levers.optimizer import optimizers_of
from lightning_perf.tune.messages import Arguments, Site
from lightning_perf.tune.training import Training

MAX_STEPS = 10**7
"""More steps than any trial trains; finite, because schedules over ``trainer.estimated_stepping_batches`` need that."""

_FOR_TRIALS: dict[str, Any] = {
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "limit_val_batches": 0,
    "num_sanity_val_steps": 0,
    "max_epochs": -1,
}
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_LOADER = ("batch_size", "drop_last", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
_OPTIMIZER = ("lr", "fused", "foreach")
_CHATTY = (*_PACKAGES, "lightning.fabric", "lightning_fabric")
"""Loggers with advice at every start, which would hide a process's last lines. Each package may log for the other."""
_LEFT_OUT = (
    "logger",
    "min_epochs",
    "min_steps",
    "max_time",
    "fast_dev_run",
    "overfit_batches",
    "profiler",
    "barebones",
)
"""Arguments of the user's Trainer that would end a trial early, write files, or distort its measurements."""

_CALLBACKS_LEFT_OUT = {
    *("Checkpoint", "OnExceptionCheckpoint", "EarlyStopping", "Timer", "BatchSizeFinder", "LearningRateFinder"),
    *("ProgressBar", "ModelSummary", "SaveConfigCallback"),
}
"""Callbacks to leave out for the same reasons, by the names of their classes and base classes in both packages."""


class LightningTrainer:
    """Lightning's Trainer in a trial: a `TrialTrainer`."""

    def __init__(self, training: Training) -> None:
        self.training = training

    def fit(self, callback: Any, folder: str, max_steps: int = MAX_STEPS) -> None:
        _fit(self.training, [] if callback is None else [callback], folder, max_steps)

    def fit_on(self, devices: int, callback: Any, folder: str, steps: int) -> None:
        """Train on several devices, with this process for one of them."""
        _fit(self.training, [callback, _End(steps)], folder, devices=devices)

    def record(self, folder: str, *, skip_first: int, warmup: int, active: int, probe_s: float) -> None:
        callback = PerfCallback(
            skip_first=skip_first, warmup=warmup, active=active, repeat=1, dirpath=folder, report="none", probe=probe_s
        )
        _fit(self.training, [callback, _End(skip_first + warmup + active + 1)], folder)

    def change(self, lever: Lever) -> Change:
        return lever.change

    def device(self) -> torch.device:
        given = {name: value for name, value in self.training.trainer.items() if name in ("accelerator", "devices")}
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        device: torch.device = trainer_class(self.training.module)(**given, **quiet).strategy.root_device
        return device

    def arguments(self) -> Arguments:
        training = self.training
        loader, optimizers = training_loader(training), optimizers_of(training) or ()
        defaults = optimizers[0].defaults if len(optimizers) == 1 else {}
        values: dict[str, dict[str, Any]] = {
            # The names of folders may have the time in them.
            "Trainer": {name: value for name, value in training.trainer.items() if name != "default_root_dir"},
            "DataLoader": {} if isinstance(loader, str) else {name: getattr(loader, name) for name in _LOADER},
            "optimizer": {name: defaults[name] for name in _OPTIMIZER if name in defaults},
        }
        simple = (bool, int, float, str, type(None))
        return Arguments(
            {
                place: {name: value for name, value in given.items() if isinstance(value, simple)}
                for place, given in values.items()
            }
        )

    def parameters(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        def names(*kinds: Any) -> tuple[tuple[str, ...], ...]:
            return tuple(tuple(inspect.signature(kind.__init__).parameters)[1:] for kind in kinds)

        training = self.training
        owner = training.module if training.data is None else training.data
        optimizers = {type(optimizer) for optimizer in optimizers_of(training) or ()}
        return {
            "Trainer": names(trainer_class(training.module)),
            "DataLoader": names(DataLoader, type(owner)),
            "optimizer": names(*optimizers),
        }

    def sites(self, calls: Any) -> dict[str, tuple[Site | str, ...]]:
        found: dict[str, tuple[Site | str, ...]] = calls.sites(
            training_loader(self.training), optimizers_of(self.training) or ()
        )
        return found

    def refused(self) -> str:
        if self.training.trainer.get("logger", True):  # each run has a folder of its own then
            return ""
        folder = Path(self.training.trainer.get("default_root_dir") or ".").absolute()
        saving = (one for one in _listed(self.training.trainer.get("callbacks")) if "SaveConfigCallback" in _names(one))
        files = (folder / one.config_filename for one in saving if not one.overwrite)
        return str(next(filter(Path.is_file, files), ""))


class _End(LightningCallback):
    """Ends a fit after some steps. With two optimizers, a step counts twice in the Trainer's ``max_steps``."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._batches = 0

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._batches += 1
        trainer.should_stop |= self._batches >= self._steps * trainer.accumulate_grad_batches


def _fit(training: Training, callbacks: list[Any], folder: str, max_steps: int = MAX_STEPS, devices: int = 0) -> None:
    given = {name: value for name, value in training.trainer.items() if name not in _LEFT_OUT}
    theirs = given.pop("callbacks", None) or []
    kind = trainer_class(training.module)
    package = kind.__module__.partition(".trainer")[0]
    trainer = kind(
        **{
            **given,
            **_FOR_TRIALS,
            **({"devices": devices} if devices else {}),
            "max_steps": max_steps,
            "default_root_dir": folder,
            "callbacks": [*_fitting(theirs), *callbacks, _LenientSchedules()],
            # It accepts everything and writes nothing: modules may use `self.logger.experiment`.
            "logger": importlib.import_module(f"{package}.loggers.logger").DummyLogger(),
        }
    )
    if devices:
        _check_devices(trainer, devices)
    elif trainer.world_size > 1:
        raise TrialError(
            f"trials run on one device, and this Trainer has {trainer.world_size}: set devices=1 for the tuning, "
            "or hide the other devices, e.g. with CUDA_VISIBLE_DEVICES=0"
        )
    module = getattr(training.module, "_orig_mod", training.module)
    configure_callbacks = module.configure_callbacks
    module.configure_callbacks = lambda: _fitting(configure_callbacks())
    if training.data is None or not hasattr(training.data, "train_dataloader"):
        trainer.fit(training.module, train_dataloaders=training.data)
    else:
        trainer.fit(training.module, datamodule=training.data)


def _check_devices(trainer: Trainer, devices: int) -> None:
    """Check that the Trainer trains on that many devices, in processes that another program starts."""
    strategy = trainer.strategy
    if trainer.world_size != devices:
        found = f"{type(strategy).__name__} of the Trainer has {trainer.world_size}"
        raise TrialError(f"{found}: leave strategy= out, or set strategy='ddp' and num_nodes=1")
    if getattr(strategy, "_start_method", "popen") != "popen":
        raise TrialError(f"{type(strategy).__name__} of the Trainer starts its own processes: set strategy='ddp'")


def trainer_class(module: Any) -> Any:
    """Return the Trainer class of the module's package."""
    plain = getattr(module, "_orig_mod", module)
    for package in _PACKAGES:
        found = sys.modules.get(package)
        if found is None:  # then the module is not of this package
            continue
        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.ERROR)  # the import sets it to INFO
        if isinstance(plain, found.LightningModule):
            return found.Trainer
    raise TrialError(f"the training's module is not a LightningModule, but {type(plain).__name__}")


class _LenientSchedules(LightningCallback):
    """Lets schedules that watch a validation metric continue without it: trials do not validate."""

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        for config in trainer.lr_scheduler_configs:
            config.strict = False


def _listed(callbacks: Any) -> Sequence[Any]:
    return callbacks if isinstance(callbacks, Sequence) else [callbacks]  # Hydra's lists are of its own class


def _names(callback: Any) -> set[str]:
    return {base.__name__ for base in type(callback).__mro__}


def _fitting(callbacks: Any) -> list[Any]:
    kept = [one for one in _listed(callbacks) if not _CALLBACKS_LEFT_OUT & _names(one)]
    # The precision that PerfCallback sets is part of the training; its observation is not.
    parts = [one.precision_part if isinstance(one, PerfCallback) else one for one in kept]
    for part in parts:
        if isinstance(part, PrecisionCallback):
            part.hand_over()  # nobody takes over: nothing is monitored, and no file is written
    return [part for part in parts if part is not None]
