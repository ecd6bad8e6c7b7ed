"""Which runs do not count, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning_perf.compare.record import RunRecord
from lightning_perf.run_files.run_record import Outcome

__all__ = ["find_left_out"]

_Block = tuple[str, int]
"""A study and the number of a block of it."""


def find_left_out(arms: Mapping[str, Sequence[RunRecord]]) -> dict[str, dict[Path, str]]:
    """Tell which runs do not count.

    Args:
        arms: The runs of each arm.

    Returns:
        For each arm the reasons, by the path of the run's record: it is a warm-up, did not finish, is of a block that
        was repeated, or is invalid.
    """
    last = _last_attempts([run for runs in arms.values() for run in runs])
    reasons = {name: {run.path: _reason(run, last) for run in runs} for name, runs in arms.items()}
    return {name: {path: why for path, why in of_arm.items() if why is not None} for name, of_arm in reasons.items()}


def _last_attempts(runs: Sequence[RunRecord]) -> dict[_Block, int]:
    """The last attempt of each block: only its runs ran under the same conditions."""
    last: dict[_Block, int] = {}
    for run in runs:
        if run.place is not None:
            block = (run.place.study, run.place.block)
            last[block] = max(run.place.attempt, last.get(block, 0))
    return last


def _reason(run: RunRecord, last_attempts: Mapping[_Block, int]) -> str | None:
    place = run.place
    if place is not None and place.block == 0:
        return "warm-up"
    if run.outcome is not Outcome.FINISHED:
        return str(run.outcome.value)
    if place is not None and place.attempt < last_attempts[place.study, place.block]:
        return "of a repeated block"
    return "invalid: " + "; ".join(run.problems) if run.problems else None
