"""A trial's own process: ``python -m lightning_perf.tune.worker FD``, with the tuner at the other end of the pipe."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from multiprocessing.connection import Connection
from typing import Any

from lightning_perf.tune.errors import TrialError
from lightning_perf.tune.lever import Machine
from lightning_perf.tune.messages import Failed, Order, Ready, Run, Stop, Window

__all__ = ["main"]

PROFILED_STEPS = 3
_FOR_TRIALS: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "limit_val_batches": 0,
    "num_sanity_val_steps": 0,
}
_OWN = ("max_epochs", "max_steps", "min_epochs", "min_steps", "max_time", "fast_dev_run", "overfit_batches", "profiler")
"""Arguments of the user's Trainer that would end a trial early or change what it measures."""


def main(descriptor: int) -> None:
    """Carry out one order, and answer over the pipe.

    Args:
        descriptor: File descriptor of the pipe.
    """
    pipe: Connection[Any, Any] = Connection(descriptor)
    order: Order = pipe.recv()
    try:
        if order.scout:
            pipe.send(_scout(order))
        else:
            _train(order, pipe)
    except _NotForThisError as error:
        pipe.send(Failed(str(error), applies=False))
    except EOFError:
        os._exit(1)  # the tuner is gone
    except BaseException as error:
        pipe.send(Failed(_reason(error)))
        raise


class _NotForThisError(Exception):
    """The lever does not apply."""


def _scout(order: Order) -> Any:
    from lightning_perf.tune.catalogue import LEVERS
    from lightning_perf.tune.messages import Scouted
    from lightning_perf.tune.scout import profile

    machine = _machine(_load(order))
    missing = {lever.name: lever.missing(_load(order), machine) for lever in LEVERS}
    predictions, note = profile(lambda **arguments: _fit(_load(order), **arguments), order.folder, PROFILED_STEPS)
    return Scouted(machine, missing, predictions, note)


def _train(order: Order, pipe: Connection[Any, Any]) -> None:
    from lightning_perf.tune.catalogue import find_lever
    from lightning_perf.tune.pacer import Pacer

    training = _load(order)
    levers = sorted(map(find_lever, order.levers), key=lambda lever: lever.family == "compile")  # wraps the module
    machine = _machine(training)
    for lever in levers:
        reason = lever.missing(training, machine) if lever.name == order.trying else None
        if reason is not None:
            raise _NotForThisError(reason)
    for lever in levers:
        lever.apply(training)

    def ask(message: Ready | Window) -> Run | Stop:
        pipe.send(message)
        answer: Run | Stop = pipe.recv()
        return answer

    _fit(training, callbacks=[Pacer(ask)], max_epochs=-1)


def _load(order: Order) -> Any:
    """The training, its weights as the seed makes them."""
    from lightning.pytorch import seed_everything

    from lightning_perf.inference.errors import InferenceError
    from lightning_perf.inference.source import find_object
    from lightning_perf.tune.training import as_training

    seed_everything(order.seed, workers=True, verbose=False)
    if isinstance(order.source, str):
        try:
            made = find_object(order.source, "TRAINING")
        except InferenceError as error:
            raise TrialError(str(error)) from error
        return as_training(made() if callable(made) else made)
    import cloudpickle

    return as_training(cloudpickle.loads(order.source))


def _fit(training: Any, **arguments: Any) -> None:
    given = {name: value for name, value in training.trainer.items() if name not in _OWN}
    callbacks = [*(given.pop("callbacks", None) or []), *arguments.pop("callbacks")]
    trainer = _trainer_class(training.module)(**{**given, **_FOR_TRIALS, **arguments, "callbacks": callbacks})
    if trainer.world_size > 1:
        raise TrialError(f"trials run on one device, and this Trainer has {trainer.world_size}: give devices=1")
    if training.data is None or not hasattr(training.data, "train_dataloader"):
        trainer.fit(training.module, train_dataloaders=training.data)
    else:
        trainer.fit(training.module, datamodule=training.data)


def _trainer_class(module: Any) -> Any:
    import lightning.pytorch as pl

    plain = getattr(module, "_orig_mod", module)
    if isinstance(plain, pl.LightningModule):
        return pl.Trainer
    import pytorch_lightning

    if isinstance(plain, pytorch_lightning.LightningModule):
        return pytorch_lightning.Trainer
    raise TrialError(f"the training's module is no LightningModule, but {type(plain).__name__}")


def _machine(training: Any) -> Machine:
    import torch

    given = {name: value for name, value in training.trainer.items() if name in ("accelerator", "devices")}
    device = _trainer_class(training.module)(**given, **_FOR_TRIALS).strategy.root_device
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(device.type, capability, cores)


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    first = lines[0] if lines else ""
    if isinstance(error, TrialError):
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    # Run as a module this file is ``__main__``: the tuner knows its messages by their module's own name.
    from lightning_perf.tune.worker import main as run

    run(int(sys.argv[1]))
