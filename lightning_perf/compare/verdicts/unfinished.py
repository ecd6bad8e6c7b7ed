"""Count runs that crashed or were killed, so that a candidate that often crashes is not called faster."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from lightning_perf.compare.records.record import RunRecord
from lightning_perf.run_files.run_record import Outcome
from lightning_perf.statistics.collapse import CollapseCounts

__all__ = ["count_unfinished"]

_WARM_UP = 0

_Unit = int | str
"""The number of a block, or the file of a run outside a study."""


def count_unfinished(
    arms: Mapping[str, Sequence[RunRecord]],
    *,
    blocked: bool,
    failed_blocks: Mapping[str, Collection[int]] | None = None,
) -> dict[str, CollapseCounts]:
    """Count the blocks of each arm with a run that did not finish; outside a study, count the runs.

    A run that failed and was repeated counts. A run that the user stopped does not count. A run that was cut off and
    repeated in the same attempt, e.g. after a reboot, does not count either.

    Args:
        arms: All runs of each arm, the baseline first.
        blocked: Whether runs are paired by block.
        failed_blocks: Further blocks, by arm, in which a run failed, e.g. without leaving a record.

    Returns:
        The counts of each candidate, by its name.
    """
    by_start = sorted((run for runs in arms.values() for run in runs), key=lambda run: run.started_unix_s)
    running = None  # the last to start, which may still be running
    if len(by_start) > 1 and by_start[-1].started_unix_s > by_start[-2].started_unix_s:
        running = by_start[-1]
    counts = {}
    for name, runs in arms.items():
        counted = [run for run in runs if run.place is None or run.place.block != _WARM_UP]
        failed = {_unit(run, blocked) for run in counted if run is not running and _did_not_finish(run, counted)}
        begun = {_unit(run, blocked) for run in counted if run.outcome is not Outcome.STOPPED}
        if blocked:
            failed |= set((failed_blocks or {}).get(name, ()))
        counts[name] = (len(failed), len(begun | failed))
    baseline = next(iter(counts.values()))
    return {name: CollapseCounts(*baseline, *of_arm) for name, of_arm in list(counts.items())[1:]}


def _unit(run: RunRecord, blocked: bool) -> _Unit:
    return run.place.block if blocked and run.place is not None else str(run.path)


def _did_not_finish(run: RunRecord, runs: Sequence[RunRecord]) -> bool:
    if run.outcome is Outcome.FAILED:
        return True
    if run.outcome is not Outcome.INTERRUPTED:
        return False
    again = (other for other in runs if other.started_unix_s > run.started_unix_s)
    return run.place is None or not any(_same_attempt(run, other) for other in again)


def _same_attempt(run: RunRecord, other: RunRecord) -> bool:
    if run.place is None or other.place is None:
        return False
    return (run.place.block, run.place.attempt) == (other.place.block, other.place.attempt)
