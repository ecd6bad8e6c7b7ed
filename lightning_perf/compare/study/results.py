"""The results of a study: its runs by arm, the state of its blocks, and notes on failures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.records.record import GIVEN_UP, RunRecord, find_records
from lightning_perf.compare.study.definition import WARM_UP, Study, read_study
from lightning_perf.run_files.journal import BlockState, device_warm_ups, read_block
from lightning_perf.run_files.run_record import Outcome


def study_arms(folder: Path) -> dict[str, tuple[RunRecord, ...]]:
    """Read the runs below a study's folder, by arm.

    Args:
        folder: The study's folder.

    Returns:
        The runs of each arm, the arms in the study's order. Runs of a block that was given up are marked invalid.

    Raises:
        CompareError: The folder holds no study, or an arm has no runs yet.
    """
    study = read_study(folder)
    states = {block: read_block(folder, block) for block in range(1, study.blocks + 1)}
    stale = {(block, attempt) for block, state in states.items() for attempt in state.stale_attempts}
    given_up = {block for block, state in states.items() if state.over and not state.done}
    arms: dict[str, list[RunRecord]] = {arm.name: [] for arm in study.arms}
    for record in find_records(folder):
        place = record.place
        if place is None or place.arm not in arms:
            continue
        if place.block in given_up:
            # Finished runs too: another run of their block failed, or left a record and then crashed.
            record = replace(record, problems=(*record.problems, GIVEN_UP))
        if record.outcome is Outcome.INTERRUPTED and (place.block, place.attempt) in stale:
            # It was cut off together with its study, which is not a failure of the arm.
            record = replace(record, outcome=Outcome.STOPPED)
        arms[place.arm].append(record)
    empty = [name for name, runs in arms.items() if not runs]
    if empty:
        raise CompareError(
            f"{folder}: no run of {', '.join(empty)} has started yet. Resume it with: lightning-perf study {folder}"
        )
    return {name: tuple(runs) for name, runs in arms.items()}


def failed_blocks(folder: Path) -> dict[str, frozenset[int]]:
    """Return the blocks in which a run of each arm failed, including runs that left no record."""
    study = read_study(folder)
    states = {block: read_block(folder, block) for block in range(1, study.blocks + 1)}
    return {
        arm.name: frozenset(block for block, state in states.items() if arm.name in state.failed) for arm in study.arms
    }


def block_states(study: Study, folder: Path) -> dict[int, BlockState]:
    """Return the state of each block, including the warm-up."""
    return {block: read_block(folder, block) for block in range(study.blocks + 1)}


def study_notes(folder: Path) -> tuple[str, ...]:
    """Return notes for the report on failures, resumptions and unfinished blocks of a study.

    Args:
        folder: The study's folder.

    Returns:
        A line for each failed run, resumption and block without result, and one that lists the unfinished blocks.
    """
    study = read_study(folder)
    states = block_states(study, folder)
    notes: list[str] = []
    for block, state in states.items():
        name = "The warm-up block" if block == WARM_UP else f"Block {block}"
        notes += [f"{name}: {event}" for event in state.events]
        if state.over and not state.done:
            notes.append(
                f"{name} has no result after {study.attempts} attempts and is left out. "
                "Run the study again to repeat it."
            )
    for device in device_warm_ups(folder):
        notes += [f"The warm-up on {device}: {event}" for event in read_block(folder, WARM_UP, device).events]
    unfinished = [block for block, state in states.items() if not state.over]
    if unfinished:
        warm_up = ["the warm-up block"] if WARM_UP in unfinished else []
        numbers = ", ".join(str(block) for block in unfinished if block != WARM_UP)
        blocks = [f"block{'s' if ',' in numbers else ''} {numbers}"] if numbers else []
        notes.append(f"Not finished: {', '.join(warm_up + blocks)}. Run the study again to resume.")
    return (*notes, *code_changes(states))


def code_changes(states: Mapping[int, BlockState]) -> tuple[str, ...]:
    """Report where the code of an arm changed during a study.

    Returns:
        A line for each arm and each revision that differs from the revision of the arm's first run.
    """
    seen = sorted(
        (code.began_unix_s, block, code.arm, code.revision) for block, state in states.items() for code in state.code
    )
    first: dict[str, str] = {}
    changed: dict[tuple[str, str], list[int]] = {}
    for _, block, arm, revision in seen:
        if revision != first.setdefault(arm, revision):
            blocks = changed.setdefault((arm, revision), [])
            if block not in blocks:
                blocks.append(block)
    return tuple(
        f"The code changed during the study: {arm} ran {revision} in block {', '.join(map(str, blocks))}, "
        f"and {first[arm]} at first."
        for (arm, revision), blocks in changed.items()
    )
