"""The worker process of a training. It finds out which levers apply, or trains window by window."""

from __future__ import annotations

import os
import warnings
from typing import Any

from lightning_perf.tune.errors import NoTrainingError, TrialError
from lightning_perf.tune.lever import Machine
from lightning_perf.tune.messages import Order, Ready, Run, Scouted, Window
from lightning_perf.workers.channel import Channel, StopRequestedError

__all__ = ["main", "work"]

PROFILED_STEPS = 3
REASON_CHARACTERS = 300


def main(channel: Channel) -> None:
    """Carry out one order, in a process of its own."""
    warnings.simplefilter("ignore")
    channel.describe = describe_error
    work(channel)


def work(channel: Channel) -> None:
    """Carry out one order.

    Raises:
        NoTrainingError: There is no such training.
        NotApplicableError: A lever turned out not to be for it.
        TrialError: It is none for trials, or a lever failed.
    """
    order = channel.receive(Order)
    if order.scout:
        channel.send(_scout(order))
    else:
        _train(order, channel)


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


def _train(order: Order, channel: Channel) -> None:
    from lightning_perf.tune.catalogue import find_lever
    from lightning_perf.tune.fit import fit
    from lightning_perf.tune.pacer import Pacer

    training = _load(order)
    # Compilation comes last: it wraps the module as the others left it.
    for lever in sorted(map(find_lever, order.levers), key=lambda lever: lever.family == "compile"):
        lever.apply(training)

    def ask(message: Ready | Window) -> Run | None:
        channel.send(message)
        try:
            return channel.receive(Run)
        except StopRequestedError:
            return None

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
    if order.source is not None:
        try:
            made = find_object(order.source, "TRAINING")
        except InferenceError as error:
            raise NoTrainingError(str(error)) from error
        return as_training(made() if callable(made) else made)
    import cloudpickle

    flags, training = cloudpickle.loads(order.pickled)
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


def describe_error(error: BaseException) -> str:
    """Word an error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # "backend='inductor' raised:" tells nothing without the line that follows.
    first = " ".join(lines[: 2 if lines[0].endswith(":") else 1]) if lines else ""
    reason = first if isinstance(error, TrialError) else f"{type(error).__name__}: {first}".removesuffix(": ")
    return reason if len(reason) <= REASON_CHARACTERS else f"{reason[: REASON_CHARACTERS - 1]}…"
