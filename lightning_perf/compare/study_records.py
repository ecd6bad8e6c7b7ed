"""The runs of a study, as arms to compare."""

from __future__ import annotations

from pathlib import Path

from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.record import RunRecord, find_records

__all__ = ["study_arms"]


def study_arms(folder: Path) -> dict[str, tuple[RunRecord, ...]]:
    """Read the runs below a study's folder, by arm.

    Args:
        folder: The study's folder.

    Returns:
        The runs of each arm; the arms in the study's order.

    Raises:
        CompareError: The folder holds no study, or no runs.
    """
    from lightning_perf.compare.study import read_study

    names = [arm.name for arm in read_study(folder).arms]
    arms: dict[str, list[RunRecord]] = {name: [] for name in names}
    for record in find_records(folder):
        if record.place is not None and record.place.arm in arms:
            arms[record.place.arm].append(record)
    empty = [name for name, runs in arms.items() if not runs]
    if empty:
        raise CompareError(f"{folder}: no run of {', '.join(empty)} has begun yet. Let the study go on.")
    return {name: tuple(runs) for name, runs in arms.items()}
