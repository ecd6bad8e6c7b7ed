"""Histories for the tests: runs in folders, and the store that they were added to."""

from pathlib import Path
from typing import Any

import numpy as np

from lightning_perf.history.store import add_runs
from tests.compare.support import write_run

DAY_S = 86_400.0
GPU = {"host__name": "gpu-box", "device__name": "H100"}


def commit_name(number: int) -> str:
    return f"abcd{number:02x}{number:06d}"


def write_commit(folder: Path, number: int, step_ms: float, *, runs: int = 2, seed: int = 0, **facts: Any) -> None:
    """Leave the runs of one commit in a folder; they vary by 0.2 %."""
    rng = np.random.default_rng([number, seed])
    for run in range(runs):
        write_run(
            folder / f"c{number}-{seed}-{run}",
            step_ms=step_ms * float(rng.lognormal(0, 0.002)),
            started=DAY_S * number + run,
            **{"code__revision": commit_name(number), "train__seed": run, **GPU, **facts},
        )


def write_history(folder: Path, *, rows: int = 20, change: int = 12, ratio: float = 1.1, **facts: Any) -> Path:
    """Make a store with a row per commit; the step time changes for good at one commit."""
    rng = np.random.default_rng(7)
    for number in range(1, rows + 1):
        level = 100.0 * (ratio if number >= change else 1.0)
        write_commit(folder / "runs", number, level * float(rng.lognormal(0, 0.005)), **facts)
    add_runs(folder / "store", [folder / "runs"], repository=folder)
    return folder / "store"
