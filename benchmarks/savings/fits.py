"""Fits of a network in several settings, which alternate every few steps. Each setting has processes of its own."""

from __future__ import annotations

import multiprocessing
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from types import TracebackType
from typing import cast

import lightning.pytorch as pl
import numpy as np
import torch
from torch import nn

from benchmarks.quiet import QUIET_TRAINER, be_quiet
from benchmarks.savings.networks import ALL, Network, RandomBatches, Training
from lightning_perf.probe.estimate import lower_quartile
from lightning_perf.statistics.values import Estimate
from lightning_perf.workers.limits import free_bytes

WARM_UP_STEPS = 5

ENDLESS = 10**9
"""Steps of a fit that ends on request."""

CONFIDENCE, LEAST_ROUNDS, DRAWS = 0.95, 6, 10_000
"""Of the interval of a gain: its confidence, the rounds from which there is one, and the draws of the bootstrap."""

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


class _Paced(pl.Callback):
    """Makes as many steps of a fit as a connection asks for, again and again, and sends their median time.

    Args:
        connection: Asks for the number of steps. The fit ends when the other side closes it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._left = 0
        self._ends_s: list[float] = []

    def on_train_start(self, trainer: pl.Trainer, *_: object) -> None:
        """Wait for the first steps."""
        self._wait(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
        """A step ends. After the last one that was asked for, wait for further ones."""
        self._ends_s.append(time.perf_counter())
        self._left -= 1
        if not self._left:
            # Another process ran before the first step, which therefore meets a cold cache.
            self._connection.send(statistics.median(end - begin for begin, end in pairwise(self._ends_s[1:])))
            self._wait(trainer)

    def _wait(self, trainer: pl.Trainer) -> None:
        try:
            self._left = self._connection.recv() + 1
        except EOFError:
            trainer.should_stop = True
        self._ends_s = [time.perf_counter()]


class FitApart:
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
        self._batches = setting.batches

    def __enter__(self) -> FitApart:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._process.join()

    def step_s(self, steps: int) -> float:
        """Return the median time of the next steps after one, in seconds, for as many samples as BASELINE has."""
        self._connection.send(steps)
        return float(self._connection.recv()) / self._batches


def _serve(connection: Connection, name: str, setting: Setting) -> None:
    """Train until the other side closes the connection."""
    be_quiet()
    Fits(ALL[name], setting).fit(_Paced(connection), ENDLESS)


def measure_apart(
    name: str, settings: Mapping[str, Setting], *, rounds: int, block_s: float, processes: int = 1
) -> dict[str, list[list[float]]]:
    """Return the step times of some settings: of each process, one for each round, in a random order within a round.

    Args:
        name: Name of the network.
        settings: The settings by their names. The first one is the baseline.
        rounds: Times that each process trains for a few steps.
        block_s: Time that the timed steps of a round take, about.
        processes: Processes of each setting, one after the other. One process of each setting runs at a time.
    """
    order = random.Random(0)
    times: dict[str, list[list[float]]] = {each: [] for each in settings}
    for _ in range(processes):
        with ExitStack() as stack:
            fits = {each: stack.enter_context(FitApart(name, setting)) for each, setting in settings.items()}
            warm = {each: one.step_s(WARM_UP_STEPS) for each, one in fits.items()}
            steps = max(1, round(block_s / next(iter(warm.values()))))
            for of_processes in times.values():
                of_processes.append([])
            for _ in range(rounds):
                for each in order.sample(list(fits), len(fits)):
                    times[each][-1].append(fits[each].step_s(steps))
    return times


def usual_step_s(times_s: Sequence[Sequence[float]]) -> float:
    """Return the usual step time: the lower quartile of the rounds of each process, and the mean over the processes.

    Others that share a processor may make a third of all rounds up to 1.5 times as long, and none shorter.

    Args:
        times_s: Step times of each process, one for each round.
    """
    return statistics.fmean(lower_quartile(rounds) for rounds in times_s)


def gain_of(before_s: Sequence[Sequence[float]], after_s: Sequence[Sequence[float]]) -> Estimate:
    """Return the gain as a share of the step, from the usual step times.

    Processes of the same training differ by the state of their memory. The interval is that of a percentile bootstrap
    over processes and their rounds. A draw has the same processes and rounds of both settings.

    Args:
        before_s: Step times of each process of the baseline, one for each round.
        after_s: Step times of the other setting.
    """
    before, after = np.array(before_s), np.array(after_s)
    processes, rounds = before.shape
    value = 1.0 - usual_step_s(after_s) / usual_step_s(before_s)
    method = "percentile bootstrap of lower quartiles"
    if rounds < LEAST_ROUNDS:
        return Estimate(value, None, None, CONFIDENCE, rounds, method)
    generator = np.random.default_rng(0)
    of_process = generator.integers(0, processes, (DRAWS, processes, 1))
    of_round = generator.integers(0, rounds, (DRAWS, processes, rounds))
    old, new = (np.quantile(times[of_process, of_round], 0.25, axis=-1).mean(axis=-1) for times in (before, after))
    low, high = np.quantile(1.0 - new / old, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return Estimate(value, float(low), float(high), CONFIDENCE, processes * rounds, method)
