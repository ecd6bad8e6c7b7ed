"""Short fits of a network in several settings, which alternate. Each setting has a process of its own."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import cast

import lightning.pytorch as pl
import torch
from torch import nn

from benchmarks.quiet import QUIET_TRAINER, be_quiet
from benchmarks.savings.unseen_networks import PLANTED, UNSEEN, Network, RandomBatches, Training
from benchmarks.step_clock import StepTimes
from lightning_perf.workers.memory_limit import free_bytes

__all__ = ["BASELINE", "Fits", "Setting", "measure_apart"]

WARM_UP_STEPS = 2

PARAMETER_BYTES, PROCESS_BYTES = 32, 3 << 29
"""Memory per parameter, with gradient, optimizer states and temporaries, and of a process without them."""


@dataclass(frozen=True)
class Setting:
    """One way to train a network.

    Attributes:
        rule: ID of the rule that advises it; empty for the baseline.
        precision: Of the Trainer.
        channels_last: Whether weights are in channels last.
        threads: Threads of torch.
        batches: Size of the batch, relative to that of the baseline.
        fused: Whether the optimizer is fused.
        compiled: Whether the network is compiled.
    """

    rule: str = ""
    precision: str = "32-true"
    channels_last: bool = False
    threads: int = 1
    batches: int = 1
    fused: bool = False
    compiled: bool = False


BASELINE = Setting()


class Fits:
    """Trains one network in one setting.

    Args:
        network: The network. All settings start with the same weights.
        setting: The setting.
    """

    def __init__(self, network: Network, setting: Setting) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(setting.threads)
        self._network, self._setting = network, setting
        module = network.make()
        if setting.channels_last:
            module = module.to(memory_format=torch.channels_last)
        self._module = cast("nn.Module", torch.compile(module)) if setting.compiled else module

    def has_images(self) -> bool:
        """Return whether channels last changes anything."""
        return any(isinstance(part, nn.Conv2d) for part in self._module.modules())

    def settings_in_memory(self) -> int:
        """Return the number of processes like this one that memory has room for, at least the baseline and another."""
        parameters = sum(parameter.numel() for parameter in self._module.parameters())
        return max(2, free_bytes() // (PARAMETER_BYTES * parameters + PROCESS_BYTES))

    def fit(self, callback: pl.Callback, steps: int) -> None:
        """Train some steps."""
        setting, network = self._setting, self._network
        trainer = pl.Trainer(
            max_epochs=1,
            precision=setting.precision,  # type: ignore[arg-type]
            accelerator="cpu",
            callbacks=[callback],
            **QUIET_TRAINER,
        )
        batches = RandomBatches(network, setting.batches * network.batch_size, steps)
        trainer.fit(Training(network, fused=setting.fused, module=self._module), batches.loader())

    def step_s(self, steps: int) -> float:
        """Return the median step time of a fit after its warm-up, in seconds, for as many samples as BASELINE has."""
        times = StepTimes(WARM_UP_STEPS)
        self.fit(times, WARM_UP_STEPS + steps)
        return times.median_s() / self._setting.batches


class FitsApart:
    """Trains one network in one setting, in a process of its own.

    Args:
        name: Name of the network.
        setting: The setting.
    """

    def __init__(self, name: str, setting: Setting) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, setting), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> FitsApart:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._process.join()

    def step_s(self, steps: int) -> float:
        """Return the median step time of a fit, as `Fits` does."""
        self._connection.send(steps)
        return float(self._connection.recv())


def _serve(connection: Connection, name: str, setting: Setting) -> None:
    """Fit as often as asked to, until the other side closes the connection."""
    be_quiet()
    fits = Fits((PLANTED | UNSEEN)[name], setting)
    while True:
        try:
            steps = connection.recv()
        except EOFError:
            return
        connection.send(fits.step_s(steps))


def measure_apart(name: str, settings: Mapping[str, Setting], *, rounds: int, block_s: float) -> dict[str, list[float]]:
    """Return the step times of some settings, one fit of each per round, in a random order within a round.

    Args:
        name: Name of the network.
        settings: The settings by their names. The first one is the baseline.
        rounds: Fits of each setting, after one that warms up.
        block_s: Time that the timed steps of a fit take, about.
    """
    order = random.Random(0)
    times: dict[str, list[float]] = {each: [] for each in settings}
    with ExitStack() as stack:
        fits = {each: stack.enter_context(FitsApart(name, setting)) for each, setting in settings.items()}
        warm = {each: one.step_s(2) for each, one in fits.items()}
        steps = max(2, min(200, round(block_s / next(iter(warm.values())))))
        for _ in range(rounds):
            for each in order.sample(list(fits), len(fits)):
                times[each].append(fits[each].step_s(steps))
    return times
