"""A trial's own process: ``python -m lightning_perf.tune.worker FD``, with the tuner at the other end of the pipe."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from multiprocessing.connection import Connection
from typing import Any

from lightning_perf.tune.errors import NotApplicableError, NoTrainingError, TrialError
from lightning_perf.tune.lever import Machine
from lightning_perf.tune.messages import Failed, Order, Ready, Run, Scouted, Stop, Window

__all__ = ["main"]

PROFILED_STEPS = 3
REASON_CHARACTERS = 300


def main(descriptor: int) -> None:
    """Carry out one order, and answer over the pipe.

    Args:
        descriptor: File descriptor of the pipe.
    """
    pipe: Connection[Any, Any] = Connection(descriptor)
    order: Order = pipe.recv()
    sys.path += [place for place in order.path if place not in sys.path]
    try:
        if order.scout:
            pipe.send(_scout(order))
        else:
            _train(order, pipe)
    except _TunerGoneError:
        os.killpg(0, signal.SIGKILL)  # with the DataLoader workers, which may be paused
    except NotApplicableError as error:
        pipe.send(Failed(str(error), "not applicable"))
    except NoTrainingError as error:
        pipe.send(Failed(str(error), "no training"))
    except BaseException as error:
        pipe.send(Failed(_reason(error)))
        raise


class _TunerGoneError(BaseException):
    """The other end of the pipe is closed."""


def _scout(order: Order) -> Scouted:
    from lightning_perf.tune.catalogue import LEVERS
    from lightning_perf.tune.fit import fit
    from lightning_perf.tune.scout import profile

    training = _load(order)
    machine = _machine(training)
    missing = {lever.name: lever.missing(training, machine) for lever in LEVERS}
    lines = {lever.name: lever.lines(training) for lever in LEVERS if missing[lever.name] is None}
    # Looking at the data has set them up already, so what trains is loaded anew.
    predictions, note = profile(
        lambda **arguments: fit(_load(order), folder=order.folder, **arguments), order.folder, PROFILED_STEPS
    )
    return Scouted(machine, missing, lines, predictions, note)


def _train(order: Order, pipe: Connection[Any, Any]) -> None:
    from lightning_perf.tune.catalogue import find_lever
    from lightning_perf.tune.fit import fit
    from lightning_perf.tune.pacer import Pacer

    training = _load(order)
    # Compilation comes last: it wraps the module as the others left it.
    for lever in sorted(map(find_lever, order.levers), key=lambda lever: lever.family == "compile"):
        lever.apply(training)

    def ask(message: Ready | Window) -> Run | Stop:
        try:
            pipe.send(message)
            answer: Run | Stop = pipe.recv()
        except (EOFError, OSError) as error:
            raise _TunerGoneError from error
        return answer

    fit(training, [pacer := Pacer(ask)], order.folder)
    if not pacer.began:
        raise TrialError("the training ended before its first step: its data give no batch")
    if not pacer.stopped:
        raise TrialError("the training ended by itself, before the trial did")


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
            raise NoTrainingError(str(error)) from error
        return as_training(made() if callable(made) else made)
    import cloudpickle

    flags, training = cloudpickle.loads(order.source)
    flags.set()
    return as_training(training)


def _machine(training: Any) -> Machine:
    import torch

    from lightning_perf.environment import cpu_name
    from lightning_perf.tune.fit import trainer_class

    given = {name: value for name, value in training.trainer.items() if name in ("accelerator", "devices")}
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    device = trainer_class(training.module)(**given, **quiet).strategy.root_device
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name() or device.type
    return Machine(device.type, capability, cores, name)


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # "backend='inductor' raised:" tells nothing without the line that follows.
    first = " ".join(lines[: 2 if lines[0].endswith(":") else 1]) if lines else ""
    reason = first if isinstance(error, TrialError) else f"{type(error).__name__}: {first}".removesuffix(": ")
    return reason if len(reason) <= REASON_CHARACTERS else f"{reason[: REASON_CHARACTERS - 1]}…"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    # Run as a module this file is ``__main__``: the tuner knows its messages by their module's own name.
    from lightning_perf.tune.worker import main as run

    run(int(sys.argv[1]))
