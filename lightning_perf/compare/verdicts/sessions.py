"""Find sessions: consecutive runs of an arm without a run of the other arm between them.

A machine is faster on some days than on others. The runs of one session share this, so they are not independent. The
statistics therefore use one value per session, as in a split-plot design.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lightning_perf.compare.records.record import RunRecord
from lightning_perf.units import format_duration

__all__ = ["find_sessions", "session_means", "session_notes"]

FAR_APART_S = 3600.0
"""A note names runs that started further apart than this."""


def find_sessions(base: Sequence[RunRecord], candidate: Sequence[RunRecord]) -> tuple[list[int], list[int]]:
    """Number the sessions of two arms.

    Args:
        base: Runs of the baseline.
        candidate: Runs of the candidate.

    Returns:
        The session number of each run, for both arms. A run that overlaps in time with one of the other arm is a
        session of its own, since both runs had the same conditions.
    """
    arms = (base, candidate)
    order = sorted((run.started_unix_s, arm, place) for arm in (0, 1) for place, run in enumerate(arms[arm]))
    numbers: tuple[list[int], list[int]] = ([0] * len(base), [0] * len(candidate))
    number, before = 0, -1
    for _, arm, place in order:
        overlaps = any(_overlap(arms[arm][place], other) for other in arms[1 - arm])
        number += arm != before or overlaps
        numbers[arm][place] = number
        before = -1 if overlaps else arm
    return numbers


def session_means(values: Sequence[float | None], numbers: Sequence[int]) -> list[float | None]:
    """Return the geometric mean of each session.

    Args:
        values: One positive value per run; others are left out.
        numbers: The session of each run.

    Example:
        >>> session_means([1.0, 4.0, 3.0], [1, 1, 2])
        [2.0, 3.0000000000000004]
    """
    logs: dict[int, list[float]] = {}
    for value, number in zip(values, numbers, strict=True):
        if value is not None and math.isfinite(value) and value > 0:
            logs.setdefault(number, []).append(math.log(value))
    return [math.exp(sum(of_session) / len(of_session)) for of_session in logs.values()]


def session_notes(used: Mapping[str, Sequence[RunRecord]], blocked: bool) -> tuple[str, ...]:
    """Return a note for each group of compared runs that started far apart in time.

    Args:
        used: The runs of each arm that count, the baseline first.
        blocked: Whether runs are paired by block.
    """
    baseline, *names = used
    if blocked:
        starts: dict[int, list[float]] = {}
        for runs in used.values():
            for run in runs:
                starts.setdefault(run.place.block if run.place else 0, []).append(run.started_unix_s)
        gaps = {block: max(times) - min(times) for block, times in starts.items()}
        length = max((run.train_time_s or 0.0 for runs in used.values() for run in runs), default=0.0)
        far = {block: gap for block, gap in sorted(gaps.items()) if gap > FAR_APART_S + length * len(used)}
        return tuple(
            f"Block {block}: its runs started {format_duration(gap * 1e9)} apart." for block, gap in far.items()
        )
    notes = []
    for name in names:
        of_base, others = ([run.started_unix_s for run in used[arm]] for arm in (baseline, name))
        gap = max(min(others) - max(of_base), min(of_base) - max(others))
        if gap > FAR_APART_S:
            notes.append(f"The runs of {baseline} and {name} are {format_duration(gap * 1e9)} apart.")
    return tuple(notes)


def _overlap(one: RunRecord, other: RunRecord) -> bool:
    starts = one.started_unix_s, other.started_unix_s
    if starts[0] == starts[1]:
        return True
    first, second = (one, other) if starts[0] < starts[1] else (other, one)
    return first.started_unix_s + (first.train_time_s or 0.0) > second.started_unix_s
