"""Compare the figures of one network that four kinds of loop train."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.compatibility.environments import InstallError, python_of
from benchmarks.compatibility.programs.same_network import LOOPS
from benchmarks.compatibility.rows import run_one
from benchmarks.versions import device_name


@dataclass(frozen=True)
class LoopRow:
    """The figures of one kind of loop, one value per training.

    Attributes:
        step_ms: Median step by the stopwatch.
        timer_ratio: Step time by lightning_perf over that of the stopwatch.
        categories_ms: Mean time of each category in the recorded steps.
        phases_ms: The same of each phase.
    """

    step_ms: list[float] = field(default_factory=list)
    timer_ratio: list[float] = field(default_factory=list)
    categories_ms: dict[str, list[float]] = field(default_factory=dict)
    phases_ms: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class LoopTable:
    """The figures of all kinds of loop.

    Attributes:
        rows: By the name of the loop.
        same: Whether all trainings ended in the same weights.
        load: The load of the machine after the last training, over one minute.
        error: The reason, if nothing was measured.
        device: The processor.
    """

    rows: Mapping[str, LoopRow] = field(default_factory=dict)
    same: bool = False
    load: float = 0.0
    error: str = ""
    device: str = ""


def compare_loops(environments: Path, rounds: int) -> LoopTable:
    """Train the network by each kind of loop in turn, with the measurement.

    Args:
        environments: The folder of the environments.
        rounds: Trainings by each. Every second round has the other order.
    """
    try:
        python = python_of("transformers", environments)
    except InstallError as error:
        return LoopTable(error=f"not installed: {error}")
    rows = {name: LoopRow() for name in LOOPS}
    weights = set()
    for number in range(rounds):
        for name in list(LOOPS) if number % 2 == 0 else list(LOOPS)[::-1]:
            outcome = run_one(name, python, measured=True)
            if outcome.error:
                return LoopTable(error=f"{name} failed: {outcome.error}")
            weights.add(outcome.weights)
            row = rows[name]
            row.step_ms.append(outcome.step_ms)
            row.timer_ratio.append(outcome.timer_ratio or 0.0)
            for times, found in ((row.categories_ms, outcome.categories_ms), (row.phases_ms, outcome.phases_ms)):
                for part, time_ms in found.items():
                    times.setdefault(part, []).append(time_ms)
    return LoopTable(rows, same=len(weights) == 1, load=os.getloadavg()[0], device=device_name())
