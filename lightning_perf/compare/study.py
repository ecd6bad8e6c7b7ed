"""A study: arms × blocks of runs, its definition on disk, and carrying it out."""

from __future__ import annotations

import os
import re
import shlex
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from lightning_perf.compare.code_changes import code_changes
from lightning_perf.compare.engines.base import Engine
from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.journal import Again, BlockState, append, device_warm_ups, read_block
from lightning_perf.compare.study_plan import balanced_orders
from lightning_perf.revision import git_revision

__all__ = ["Study", "StudyArm", "block_states", "has_begun", "read_study", "run_study", "study_notes"]

DEFINITION = "study.json"
WARM_UP = 0
_PLACEHOLDER = re.compile(r"\{(?:seed|block|dir)\}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class StudyArm:
    """One setting.

    Attributes:
        name: Its name: letters, digits, dots, dashes, underscores.
        command: Program and arguments of a run. ``{seed}``, ``{block}`` and ``{dir}`` (a folder for the run's files)
            are filled in.
        environment: Environment variables to set.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def filled(self, *, seed: int, block: int, folder: Path) -> list[str]:
        """The command of one run.

        Example:
            >>> StudyArm("a", ("train.py", "--seed={seed}")).filled(seed=7, block=1, folder=Path("x"))
            ['train.py', '--seed=7']
        """
        values = {"{seed}": str(seed), "{block}": str(block), "{dir}": str(folder)}
        # One pass: a value that looks like a placeholder stays as it is.
        return [_PLACEHOLDER.sub(lambda match: values[match[0]], text) for text in self.command]


@dataclass(frozen=True, kw_only=True)
class Study:
    """What a study runs.

    Attributes:
        arms: The settings; the first is the baseline.
        blocks: Blocks that count, each with one run of every arm. Six are the fewest with which an exact paired test
            can reach p < 0.05.
        treatment: Facts that differ between the arms by intent, as ``precision``.
        seed: Seeds the orders and the runs; block n trains with seed + n in every arm.
        attempts: How often a block is tried when runs of it fail.
        workdir: Folder in which the commands run.
        study_id: Unique name.
        revision: Of the code in `workdir` when the study was defined; None where there is no git repository.

    Raises:
        CompareError: The definition makes no study.
    """

    arms: tuple[StudyArm, ...]
    blocks: int = 6
    treatment: tuple[str, ...] = ()
    seed: int = 0
    attempts: int = 3
    workdir: str = field(default_factory=os.getcwd)
    study_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    revision: str | None = field(default_factory=lambda: git_revision(Path.cwd()))

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(names) < 2:
            raise CompareError("A study needs two arms or more. Give each as --arm NAME=COMMAND.")
        for arm in self.arms:
            if not _NAME.fullmatch(arm.name):
                raise CompareError(
                    f'"{arm.name}" is no name for an arm. Use letters, digits, dots, dashes, underscores.'
                )
            if not arm.command:
                raise CompareError(f"The arm {arm.name} has no command.")
        if len(set(names)) < len(names):
            raise CompareError(f"Two arms have the same name: {', '.join(names)}.")
        if self.blocks < 1 or self.attempts < 1:
            raise CompareError("A study needs at least one block and one attempt.")

    def order(self, block: int) -> tuple[str, ...]:
        """The arms in the order in which they run in a block; block 0 is the warm-up."""
        names = [arm.name for arm in self.arms]
        return tuple(names) if block == WARM_UP else balanced_orders(names, self.blocks, self.seed)[block - 1]

    def arm(self, name: str) -> StudyArm:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)


def read_study(folder: Path) -> Study:
    """Read a study's definition.

    Args:
        folder: The study's folder.

    Returns:
        The definition.

    Raises:
        CompareError: There is none, or it cannot be read.
    """
    path = folder / DEFINITION
    try:
        return msgspec.json.decode(path.read_bytes(), type=Study)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CompareError(f"{folder}: holds no study. Give the folder of one, or two folders of runs.") from error
    except (OSError, msgspec.DecodeError) as error:
        raise CompareError(f"{path}: is no definition of a study ({error}).") from error


def run_study(
    study: Study | None, folder: Path, engine: Engine, on_progress: Callable[[str], None]
) -> dict[int, BlockState]:
    """Carry out a study, or what is left of it.

    Args:
        study: The definition; None to go on with the one in the folder.
        folder: Where everything goes. A folder that holds a study goes on with that one.
        engine: What runs the blocks.
        on_progress: Called with each line of progress.

    Returns:
        The state of each block.

    Raises:
        CompareError: The folder holds a different study, another driver is at work on it, it cannot be written, the
            engine has no such device, or the warm-up block fails.
        KeyboardInterrupt: It was stopped; nothing finished is lost.
    """
    if os.name != "posix":
        raise CompareError("A study needs Linux or macOS. Its runs can be compared anywhere: lightning-perf compare.")
    # Not above: what compares runs reads the study's folder too, and Windows has no such locks.
    from lightning_perf.compare.engines.lease import Lease, LeaseTakenError
    from lightning_perf.compare.progress import ProgressLines

    folder = folder.absolute()
    try:
        with Lease(folder, "driver"):
            study = _settle(study, folder)
            if not Path(study.workdir).is_dir():
                raise CompareError(f"{study.workdir}: the folder that the study's commands run in is not there.")
            engine.check()
            changed = _changed_since_begun(study)
            if changed is not None:
                on_progress(changed)
            _try_again(study, folder)
            lines = ProgressLines(study, folder, on_progress)
            for blocks in ([WARM_UP], list(range(1, study.blocks + 1))):
                waiting = [block for block in blocks if not read_block(folder, block).over]
                if waiting:
                    engine.run(folder, waiting, lines.tick)
                lines.tick()
                warm_up = read_block(folder, WARM_UP)
                if not warm_up.done:
                    raise CompareError(f"The warm-up block failed, so the others would too: {warm_up.failure}.")
            return block_states(study, folder)
    except LeaseTakenError as error:
        raise CompareError(
            f"{folder}: another lightning-perf study is at work on it. Wait for it or stop it."
        ) from error
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk, a folder that may not be written, storage that has gone or knows no locks
        raise CompareError(
            f"{error.filename or folder}: the study cannot go on ({error.strerror or error}). Mend that and run it "
            "again: nothing finished is lost."
        ) from error


def block_states(study: Study, folder: Path) -> dict[int, BlockState]:
    """The state of each block, the warm-up included."""
    return {block: read_block(folder, block) for block in range(study.blocks + 1)}


def has_begun(folder: Path) -> bool:
    """Whether any run of a study has begun; before that its definition may still change."""
    return any((folder / "blocks").glob("*.jsonl"))


def study_notes(folder: Path) -> tuple[str, ...]:
    """What went wrong in a study and what was done about it, for its report.

    Args:
        folder: The study's folder.

    Returns:
        A line for each failed run, resumption and block without result, and one for what is not finished.
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
                "Run the study again to try it anew."
            )
    for device in device_warm_ups(folder):
        notes += [f"The warm-up on {device}: {event}" for event in read_block(folder, WARM_UP, device).events]
    unfinished = [block for block, state in states.items() if not state.over]
    if unfinished:
        warm_up = ["the warm-up block"] if WARM_UP in unfinished else []
        numbers = ", ".join(str(block) for block in unfinished if block != WARM_UP)
        blocks = [f"block{'s' if ',' in numbers else ''} {numbers}"] if numbers else []
        notes.append(f"Not finished: {', '.join(warm_up + blocks)}. Run the study again to go on.")
    return (*notes, *code_changes(states))


def _changed_since_begun(study: Study) -> str | None:
    now = git_revision(Path(study.workdir)) if Path(study.workdir).is_dir() else None
    if now is None or study.revision in (None, now):
        return None
    return (
        f"The code in {study.workdir} has changed since the study began (it was {study.revision}, it is {now}): if the "
        "runs train with it, the comparison will be refused unless --allow code. To have it fair, restore it or begin "
        "a new study."
    )


def _try_again(study: Study, folder: Path) -> None:
    """Give blocks that had been given up their attempts anew: the user has had the time to mend what was wrong."""
    places = [
        *((block, None) for block in range(study.blocks + 1)),
        *((WARM_UP, name) for name in device_warm_ups(folder)),
    ]
    for block, device in places:
        state = read_block(folder, block, device)
        if state.over and not state.done:
            append(folder, block, Again(), device)


def _settle(study: Study | None, folder: Path) -> Study:
    """Write the definition, or check that it is the one that is there."""
    path = folder / DEFINITION
    if study is None and not path.exists():
        raise CompareError(f"{folder}: holds no study to go on with. Give the arms: --arm NAME=COMMAND.")
    if study is not None and not (path.exists() and has_begun(folder)):
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(study), indent=2) + b"\n")
        partial.replace(path)
        return study
    there = read_study(folder)
    changed = _changes(there, study) if study is not None else []
    if changed:
        raise CompareError(
            f"{folder}: holds a different study ({'; '.join(changed)}). Go on with that one by giving no arms, "
            "or choose another folder."
        )
    return there


def _changes(there: Study, given: Study) -> list[str]:
    """In what the plans of two studies differ."""
    changed = [
        f"{name}: {getattr(there, name)}, not {getattr(given, name)}"
        for name in ("blocks", "treatment", "seed", "attempts")
        if getattr(there, name) != getattr(given, name)
    ]
    names, wanted = ([arm.name for arm in study.arms] for study in (there, given))
    if names != wanted:
        return [f"arms: {', '.join(names)}, not {', '.join(wanted)}", *changed]
    for name in names:
        one, other = there.arm(name), given.arm(name)
        if one.command != other.command:
            changed.append(f"command of {name}: {shlex.join(one.command)}, not {shlex.join(other.command)}")
        if dict(one.environment) != dict(other.environment):
            changed.append(f"environment of {name}: {dict(one.environment)}, not {dict(other.environment)}")
    return changed
