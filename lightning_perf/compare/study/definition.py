"""The definition of a study: arms × blocks of runs, the order of the runs, its file, and its results."""

from __future__ import annotations

import os
import random
import re
import shlex
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from lightning_perf.compare.records.record import GIVEN_UP, RunRecord, find_records
from lightning_perf.errors import CompareError, TraceError
from lightning_perf.run_files.atomic import read_json
from lightning_perf.run_files.journal import STUDY_NAME, BlockState, device_warm_ups, read_block
from lightning_perf.run_files.run_record import Outcome
from lightning_perf.workers.revision import git_revision

T = TypeVar("T")

WARM_UP = 0
_PLACEHOLDER = re.compile(r"\{(?:seed|block|dir)\}")
_SECRET = re.compile("key|token|secret|passw|credential", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class StudyArm(Struct, frozen=True):
    """One setting of a study: a command that trains with it.

    Attributes:
        name: Its name: letters, digits, dots, dashes, underscores.
        command: Program and arguments of a run. The study replaces ``{seed}``, ``{block}`` and ``{dir}``, a folder for
            the run's files.
        environment: Environment variables to set.
        folder: Folder in which the command runs, e.g. a checkout of its own; None for that of the study.
        search_paths: Folders to put in front of a variable such as ``PATH`` or ``PYTHONPATH``.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    search_paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def shown(self) -> str:
        """Return the command and its variables as a shell line, without values that may be secret.

        Example:
            >>> StudyArm("a", ("train.py", "--lr", "0.1"), {"WANDB_API_KEY": "123", "TF32": "0"}).shown()
            'WANDB_API_KEY=… TF32=0 train.py --lr 0.1'
        """
        variables = [
            f"{name}={'…' if _SECRET.search(name) else shlex.quote(value)}" for name, value in self.environment.items()
        ]
        return " ".join([*variables, shlex.join(self.command)])

    def variables(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables of a run.

        Args:
            inherited: The variables of this process.

        Example:
            >>> StudyArm("a", ("train.py",), search_paths={"PATH": ("/env/bin",)}).variables({"PATH": "/usr/bin"})
            {'PATH': '/env/bin:/usr/bin'}
        """
        joined = {
            name: os.pathsep.join([*folders, *filter(None, [inherited.get(name)])])
            for name, folders in self.search_paths.items()
        }
        return {**inherited, **joined, **self.environment}

    def filled(self, *, seed: int, block: int, folder: Path) -> list[str]:
        """Return the command of one run, with its placeholders replaced.

        Example:
            >>> StudyArm("a", ("train.py", "--seed={seed}")).filled(seed=7, block=1, folder=Path("x"))
            ['train.py', '--seed=7']
        """
        values = {"{seed}": str(seed), "{block}": str(block), "{dir}": str(folder)}
        # In one pass, so that a value that looks like a placeholder is not replaced again.
        return [_PLACEHOLDER.sub(lambda match: values[match[0]], text) for text in self.command]


class Study(Struct, frozen=True, kw_only=True):
    """The plan of a study: its arms, and how often and in which order they run.

    Attributes:
        arms: The settings; the first is the baseline.
        blocks: Blocks that count, each with one run per arm. Six is the smallest number with which an exact paired
            test can reach p < 0.05.
        treatment: The settings being tested, e.g. ``precision``.
        seed: Seeds the orders and the runs; block n trains with seed + n in every arm.
        attempts: How often a block is tried if runs of it fail.
        precise: Add blocks until the interval of the step time reaches at most this share to each side, for every
            candidate. `blocks` then is the number planned so far. None runs exactly `blocks` blocks.
        max_blocks: The largest number of blocks of a precise study; None for any other study.
        workdir: Folder in which the commands run.
        study_id: Unique name.
        revision: Revision of the code in `workdir` when the study was defined; None outside a git repository.

    Raises:
        CompareError: A value is invalid, e.g. two arms have the same name.
    """

    arms: tuple[StudyArm, ...]
    blocks: int = 6
    treatment: tuple[str, ...] = ()
    seed: int = 0
    attempts: int = 3
    precise: float | None = None
    max_blocks: int | None = None
    workdir: str = field(default_factory=os.getcwd)
    study_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    revision: str | None = field(default_factory=lambda: git_revision(Path.cwd()))

    def __post_init__(self) -> None:
        problem = next(_problems(self), None)
        if problem is not None:
            raise CompareError(problem)

    def order(self, block: int) -> tuple[str, ...]:
        """Return the names of the arms in the order in which they run in a block. Block 0 is the warm-up."""
        names = [arm.name for arm in self.arms]
        if block == WARM_UP:
            return tuple(names)
        # More blocks must not change the order of the earlier ones.
        extensible = self.precise is not None
        return balanced_orders(names, self.blocks, self.seed, extensible=extensible)[block - 1]

    def arm(self, name: str) -> StudyArm:
        """Return the arm with that name."""
        return next(arm for arm in self.arms if arm.name == name)


def _problems(study: Study) -> Iterator[str]:
    names = [arm.name for arm in study.arms]
    if len(names) < 2:
        yield f"A study needs at least two arms, not {len(names)}. Give each as --arm NAME=COMMAND."
    for arm in study.arms:
        if not _NAME.fullmatch(arm.name):
            yield f'"{arm.name}" is not a valid name for an arm. Use letters, digits, dots, dashes, underscores.'
        if not arm.command:
            yield f"The arm {arm.name} has no command. Give one: --arm {arm.name}=COMMAND."
    if len(set(names)) < len(names):
        yield f"Two arms have the same name: {', '.join(names)}. Give each arm its own name."
    for name in ("blocks", "attempts"):
        if getattr(study, name) < 1:
            yield f"A study needs at least 1 of --{name}, not {getattr(study, name)}."
    if study.precise is not None and not 0 < study.precise < 1:
        yield f"Study(precise={study.precise!r}): must be above 0 and below 1."
    if (study.precise is None) != (study.max_blocks is None) or study.blocks > (study.max_blocks or study.blocks):
        yield (
            f"Study(max_blocks={study.max_blocks!r}): a precise study needs max_blocks of at least blocks, "
            f"{study.blocks}. Any other study has none."
        )


def read_study(folder: Path) -> Study:
    """Read a study's definition.

    Args:
        folder: The study's folder.

    Returns:
        The definition.

    Raises:
        CompareError: The folder holds no study, or its definition cannot be read.
    """
    path = folder / STUDY_NAME
    if not path.exists():
        problem = f"no study in this folder ({STUDY_NAME} is missing)" if folder.exists() else "no such folder"
        raise CompareError(f"{folder}: {problem}. Give the folder of a study, or two or more folders of runs.")
    return read_file(path, Study, "is not the definition of a study")


def read_file(path: Path, kind: type[T], problem: str) -> T:
    """Read a JSON file of a study."""
    try:
        return read_json(path, kind, problem, "Restore the file, or start the study again in another folder")
    except TraceError as error:
        raise CompareError(str(error)) from error


def balanced_orders(
    arms: Sequence[str], blocks: int, seed: int, *, extensible: bool = False
) -> tuple[tuple[str, ...], ...]:
    """Draw the order of the arms within each block.

    With two arms, AB and BA occur equally often, or one of them once more if the number of blocks is odd. With k arms,
    each group of k blocks is a Latin square with shuffled rows and columns: every arm has every position once. Drift
    over the study then affects all arms alike, and no arm profits from running first. With `extensible`, each group of
    k blocks stays together, so that the orders of fewer blocks begin those of more.
    """
    rng = random.Random(seed)
    orders: list[tuple[str, ...]] = []
    size = len(arms)
    while len(orders) < blocks:
        columns = rng.sample(list(arms), size)
        shifts = rng.sample(range(size), size)
        orders.extend(tuple(columns[(position + shift) % size] for position in range(size)) for shift in shifts)
    # In consecutive groups of k blocks the last block of each group would be predictable, so shuffle all blocks. If the
    # last group is incomplete, do not: dropping blocks after the shuffle could unbalance the positions.
    if blocks % size == 0 and not extensible:
        rng.shuffle(orders)
    return tuple(orders[:blocks])


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
    """Return a line for each arm and each revision of its code that differs from that of the arm's first run."""
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
