"""Run a study: write its definition, then run the warm-up block and the other blocks on an engine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.study.definition import WARM_UP, Study, read_study
from lightning_perf.compare.study.progress import ProgressLines
from lightning_perf.compare.study.results import block_states
from lightning_perf.revision import git_revision
from lightning_perf.run_files.atomic import write_document
from lightning_perf.run_files.journal import (
    STUDY_NAME,
    Again,
    BlockState,
    append,
    device_warm_ups,
    has_begun,
    read_block,
)

__all__ = ["Engine", "run_study"]


class Engine(Protocol):
    """Runs the blocks of a study. All state is in the study's folder, at the same path on every machine."""

    def check(self) -> None:
        """Check that blocks can run.

        Raises:
            CompareError: The device or the cluster does not exist.
        """

    def run(self, folder: Path, blocks: Sequence[int], tick: Callable[[], None]) -> None:
        """Run blocks until each is over.

        Args:
            folder: The study's folder.
            blocks: Numbers of the blocks.
            tick: Called about every second.

        Raises:
            KeyboardInterrupt: The user stopped the study. Its current runs have ended.
        """


def run_study(study: Study | None, folder: Path, engine: Engine, say: Callable[[str], None]) -> dict[int, BlockState]:
    """Run a study, or resume it.

    Args:
        study: The definition; None to resume the study in the folder.
        folder: Folder of the study. If it already holds this study, the study resumes.
        engine: Runs the blocks.
        say: Called with each line of progress.

    Returns:
        The state of each block.

    Raises:
        CompareError: The folder holds a different study, another process runs it, it cannot be written, the engine
            lacks the device, or the warm-up block fails.
        KeyboardInterrupt: The user stopped the study. Finished runs are kept.
    """
    if os.name != "posix":
        raise CompareError(
            "A study needs Linux or macOS. To compare its runs on this machine, use lightning-perf compare."
        )
    # Imported here because Windows lacks these locks, and comparing the runs of a study works there.
    from lightning_perf.compare.study.lease import Lease, LeaseTakenError

    folder = folder.absolute()
    try:
        with Lease(folder, "driver"):
            study = _settle(study, folder)
            if not Path(study.workdir).is_dir():
                raise CompareError(
                    f"{study.workdir}: no such folder, and the study's commands run in it. Restore it, or define the "
                    "study again in another folder."
                )
            engine.check()
            changed = _changed_since_begun(study)
            if changed is not None:
                say(changed)
            _try_again(study, folder)
            lines = ProgressLines(study, folder, say)
            for blocks in ([WARM_UP], list(range(1, study.blocks + 1))):
                waiting = [block for block in blocks if not read_block(folder, block).over]
                if waiting:
                    engine.run(folder, waiting, lines.tick)
                lines.tick()
                warm_up = read_block(folder, WARM_UP)
                if not warm_up.done:
                    raise CompareError(f"The warm-up block failed, so the other blocks did not run: {warm_up.failure}.")
            return block_states(study, folder)
    except LeaseTakenError as error:
        raise CompareError(
            f"{folder}: another lightning-perf process is running this study. Wait for it to end, or stop it."
        ) from error
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk, a read-only folder, storage that is gone or has no file locks
        raise CompareError(
            f"{error.filename or folder}: the study cannot continue ({error.strerror or error}). Fix this and run it "
            "again with the same folder: finished runs are kept."
        ) from error


def _changed_since_begun(study: Study) -> str | None:
    now = git_revision(Path(study.workdir)) if Path(study.workdir).is_dir() else None
    if now is None or study.revision in (None, now):
        return None
    return (
        f"The code in {study.workdir} has changed since the study started (from {study.revision} to {now}). If the "
        "runs use this code, the comparison will be refused as unfair. Restore the code or start a new study. To "
        "compare anyway, add --allow code."
    )


def _try_again(study: Study, folder: Path) -> None:
    """Retry the blocks that were given up, since the user may have fixed the cause."""
    places = [
        *((block, None) for block in range(study.blocks + 1)),
        *((WARM_UP, name) for name in device_warm_ups(folder)),
    ]
    for block, device in places:
        state = read_block(folder, block, device)
        if state.over and not state.done:
            append(folder, block, Again(), device)


def _settle(study: Study | None, folder: Path) -> Study:
    """Write the definition, or check that it equals the existing one."""
    path = folder / STUDY_NAME
    if study is None and not path.exists():
        raise CompareError(f"{folder}: no study to resume in this folder. Give the arms: --arm NAME=COMMAND.")
    if study is not None and not (path.exists() and has_begun(folder)):
        write_document(path, study)
        return study
    there = read_study(folder)
    changed = _changes(there, study) if study is not None else []
    if changed:
        raise CompareError(
            f"{folder}: holds a different study ({'; '.join(changed)}). Omit the arms to resume that study, or choose "
            "another folder."
        )
    return there


def _changes(there: Study, given: Study) -> list[str]:
    """List the differences between the plans of two studies."""
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
