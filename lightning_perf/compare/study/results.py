"""The runs of a study, as arms to compare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.journal import read_block
from lightning_perf.compare.record import RunRecord, find_records

__all__ = ["study_arms"]


def study_arms(folder: Path) -> dict[str, tuple[RunRecord, ...]]:
    """Read the runs below a study's folder, by arm.

    Args:
        folder: The study's folder.

    Returns:
        The runs of each arm; the arms in the study's order. Those of a block that was given up are marked invalid.

    Raises:
        CompareError: The folder holds no study, or no runs.
    """
    from lightning_perf.compare.study.run import read_study

    study = read_study(folder)
    states = {block: read_block(folder, block) for block in range(1, study.blocks + 1)}
    given_up = {block for block, state in states.items() if state.over and not state.done}
    arms: dict[str, list[RunRecord]] = {arm.name: [] for arm in study.arms}
    for record in find_records(folder):
        place = record.place
        if place is None or place.arm not in arms:
            continue
        if place.block in given_up:
            # Also those that finished: their partners did not, or left a record and then crashed.
            record = replace(record, problems=(*record.problems, "its block was given up"))
        arms[place.arm].append(record)
    empty = [name for name, runs in arms.items() if not runs]
    if empty:
        raise CompareError(f"{folder}: no run of {', '.join(empty)} has begun yet. Let the study go on.")
    return {name: tuple(runs) for name, runs in arms.items()}
