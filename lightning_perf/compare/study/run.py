"""Run a study: write its definition, then run the warm-up block and the other blocks on an engine."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.compare.study.definition import WARM_UP, Study, block_states, code_changes, read_study
from lightning_perf.errors import CompareError
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
from lightning_perf.units import format_duration
from lightning_perf.workers.revision import git_revision


class Engine(Protocol):
    """Runs the blocks of a study. All state is in the study's folder, at the same path on every machine."""

    def check(self) -> None:
        """Check that blocks can run.

        Raises:
            CompareError: The device or the cluster does not exist.
        """

    def run(self, folder: Path, blocks: Sequence[int], tick: Callable[[], None]) -> None:
        """Run blocks until each is over.

        Raises:
            KeyboardInterrupt: The user stopped the study. Its current runs have ended.
        """


def run_study(
    study: Study | None,
    folder: Path,
    engine: Engine,
    say: Callable[[str], None],
    *,
    half_width: Callable[[Path], float | None] | None = None,
    budget_s: float | None = None,
) -> dict[int, BlockState]:
    """Run a study, or resume it.

    Args:
        study: The definition; None to resume the study in the folder.
        folder: Folder of the study. If it already holds this study, the study resumes.
        engine: Runs the blocks.
        say: Called with each line of progress.
        half_width: Returns the half-width of the widest interval of the step time so far, as a share, or None before
            the first interval. A precise study needs it.
        budget_s: Seconds after which no further block starts. A block that would probably end later does not start
            either. None for no limit.

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
    from lightning_perf.compare.study.checkouts import Lease, LeaseTakenError

    folder = folder.absolute()
    budget = _Budget(budget_s)
    try:
        with Lease(folder, "driver"):
            study = _settle(study, folder)
            _check_folders(study)
            engine.check()
            changed = _changed_since_begun(study)
            if changed is not None:
                say(changed)
            _try_again(study, folder)
            tick = ProgressLines(study, folder, say).tick
            for blocks in ([WARM_UP], list(range(1, study.blocks + 1))):
                _run_blocks(folder, blocks, engine, tick, budget if WARM_UP not in blocks else _Budget(None))
                warm_up = read_block(folder, WARM_UP)
                if not warm_up.done:
                    raise CompareError(f"The warm-up block failed, so the other blocks did not run: {warm_up.failure}.")
            if half_width is not None:
                study = _run_more_blocks(study, folder, engine, say, half_width, budget)
            if budget.spent:
                say(budget.message(study, folder))
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


def _check_folders(study: Study) -> None:
    if not Path(study.workdir).is_dir():
        raise CompareError(
            f"{study.workdir}: no such folder, and the study's commands run in it. Restore it, or define the study "
            "again in another folder."
        )
    for arm in study.arms:
        if arm.folder is not None and not Path(arm.folder).is_dir():
            raise CompareError(
                f"{arm.folder}: no such folder, and {arm.name} runs in it. If lightning-perf gate made it, run that "
                "command again. It makes the folder again and keeps the finished runs."
            )


def _run_more_blocks(
    study: Study,
    folder: Path,
    engine: Engine,
    say: Callable[[str], None],
    half_width: Callable[[Path], float | None],
    budget: _Budget,
) -> Study:
    """Add blocks to a precise study until it is precise enough, and return the study with all its blocks."""
    while study.precise is not None and not budget.spent:
        more = _extended(study, half_width(folder), _parallel_blocks(engine), say)
        if more is None:
            break
        write_document(folder / STUDY_NAME, more)
        tick = ProgressLines(more, folder, say, resumed=False).tick
        _run_blocks(folder, list(range(study.blocks + 1, more.blocks + 1)), engine, tick, budget)
        study = more
    return study


MIN_PRECISE_BLOCKS = 12
"""Blocks before the first look at the precision.

With fewer blocks, a study would too often stop because its sample has a small spread by chance. Among simulated studies
without a difference, at most 6.0 % reported one at 95 % confidence (``tests/compare/study/test_precision.py``).
"""

MAX_PRECISE_BLOCKS = 40
ADDED_BLOCKS = 4
"""Blocks between two looks at the precision, at least. Fewer looks keep the level closer to its nominal value."""


class _Budget:
    """The time for the blocks of this call. It does not depend on any result, so it cannot bias the verdict."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds, self._began_s = seconds, time.monotonic()
        self.limited = seconds is not None
        self.spent = False

    def allows(self, block_s: float) -> bool:
        """Whether a block of this length can still end in time."""
        if self._seconds is not None and time.monotonic() - self._began_s + block_s > self._seconds:
            self.spent = True
        return not self.spent

    def message(self, study: Study, folder: Path) -> str:
        """Report how far the study came."""
        over = sum(read_block(folder, block).over for block in range(1, study.blocks + 1))
        planned = f"{study.blocks}" if study.max_blocks is None else f"up to {study.max_blocks}"
        return (
            f"The time budget of {format_duration((self._seconds or 0.0) * 1e9)} allows no further block: {over} of "
            f"{planned} are finished. Run the study again with the same folder for the rest."
        )


def _parallel_blocks(engine: Engine) -> int:
    return getattr(engine, "parallel_blocks", 1)


def _run_blocks(folder: Path, blocks: Sequence[int], engine: Engine, tick: Callable[[], None], budget: _Budget) -> None:
    waiting = [block for block in blocks if not read_block(folder, block).over]
    # Without a budget the engine gets all blocks, so that no device waits for another.
    size = _parallel_blocks(engine) if budget.limited else len(waiting)
    while waiting and budget.allows(_block_s(folder, waiting[0])):
        engine.run(folder, waiting[:size], tick)
        waiting = waiting[size:]
    tick()


def _block_s(folder: Path, block: int) -> float:
    """Estimate the length of a block by the longest so far, the warm-up included."""
    return max((sum(read_block(folder, earlier).seconds) for earlier in range(block)), default=0.0)


def _extended(study: Study, half_width: float | None, parallel: int, say: Callable[[str], None]) -> Study | None:
    """Plan more blocks, or return None when the study is precise enough or has its largest number of blocks.

    Only the width of the interval decides, never its place. So the estimate stays unbiased.
    """
    if study.precise is None or study.max_blocks is None:
        return None
    wanted = f"wanted: ±{100 * study.precise:.3g} %"
    found = f"±{100 * half_width:.3g} %" if half_width is not None else "an unknown precision"
    if half_width is not None and half_width <= study.precise:
        say(f"After {study.blocks} blocks the step time is precise enough: {found} ({wanted}).")
        return None
    if study.blocks >= study.max_blocks:
        say(f"After {study.blocks} blocks, the maximum, the step time has {found} ({wanted}).")
        return None
    size = len(study.arms)  # a whole group of orders, so that the design stays balanced
    step = size * -(-max(parallel, ADDED_BLOCKS) // size)
    blocks = min(study.blocks + step, study.max_blocks)
    say(f"After {study.blocks} blocks the step time has {found} ({wanted}). Adding {blocks - study.blocks} blocks.")
    return replace(study, blocks=blocks)


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


_PLAN = ("treatment", "seed", "attempts", "precise")


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


def _changes(there: Study, given: Study) -> list[str]:
    """List the differences between the plans of two studies."""
    changed = [
        f"{name}: {_shown(getattr(there, name))}, not {_shown(getattr(given, name))}"
        for name in ("max_blocks" if given.precise is not None else "blocks", *_PLAN)
        if getattr(there, name) != getattr(given, name)
    ]
    names, wanted = ([arm.name for arm in study.arms] for study in (there, given))
    if names != wanted:
        return [f"arms: {', '.join(names)}, not {', '.join(wanted)}", *changed]
    for name in names:
        one, other = there.arm(name), given.arm(name)
        if one.command != other.command:
            changed.append(f"command of {name}: {shlex.join(one.command)}, not {shlex.join(other.command)}")
        if one.folder != other.folder:
            changed.append(f"folder of {name}: {one.folder}, not {other.folder}")
        if dict(one.environment) != dict(other.environment):
            changed.append(f"environment of {name}: {dict(one.environment)}, not {dict(other.environment)}")
    return changed


REPORT_WAIT_AFTER_S = 3.0
"""Report waiting after this many seconds without a run. The pause between two runs is shorter."""


class Progress(Struct, frozen=True):
    """The progress of a study: finished and running runs, and the problems so far.

    Attributes:
        runs: Total number of runs if nothing fails, warm-ups included. Warm-ups of further devices count once they
            have started.
        running: The current runs, e.g. ``block 2 of 6: amp``.
        mean_run_s: Mean time of a finished run; None before the first has finished.
    """

    runs: int
    finished: int
    running: tuple[str, ...]
    mean_run_s: float | None
    events: tuple[str, ...]
    code_changes: tuple[str, ...]


def read_progress(study: Study, folder: Path) -> Progress:
    """Read the progress of a study from its journals."""
    states, arms = block_states(study, folder), len(study.arms)
    named = [(f"block {block} of {study.blocks}" if block else "warm-up", state) for block, state in states.items()]
    named += [(f"warm-up on {device}", read_block(folder, 0, device)) for device in device_warm_ups(folder)]
    seconds = [run_s for _, state in named for run_s in state.seconds]
    return Progress(
        runs=len(named) * arms,
        # Nothing is left to do in a block that was given up.
        finished=sum(arms if state.over and not state.done else len(state.finished) for _, state in named),
        running=tuple(
            f"{name}: {state.open_run.arm}" for name, state in named if state.open_run is not None and not state.over
        ),
        mean_run_s=sum(seconds) / len(seconds) if seconds else None,
        events=tuple(f"{name}: {event}" for name, state in named for event in state.events),
        code_changes=code_changes(states),
    )


class ProgressLines:
    """Writes a line of progress whenever something changed."""

    def __init__(self, study: Study, folder: Path, on_progress: Callable[[str], None], *, resumed: bool = True) -> None:
        self._study, self._folder, self._on_progress = study, folder, on_progress
        self._last = read_progress(study, folder)
        if self._last.finished and resumed:
            on_progress(f"Resuming: {self._last.finished} of {self._last.runs} runs are finished.")
        self._last_running: tuple[str, ...] = ()
        self._busy_s = time.monotonic()

    def tick(self) -> None:
        """Read the progress and report the changes."""
        progress = read_progress(self._study, self._folder)
        # Compare counts, not positions: blocks that run side by side insert their events among those of others.
        for event in (Counter(progress.events) - Counter(self._last.events)).elements():
            self._on_progress(event)
        for change in progress.code_changes[len(self._last.code_changes) :]:
            self._on_progress(f"{change} Undo the change, or compare with --allow code.")
        if progress.running != self._last_running and progress.running:
            self._on_progress(self._line(progress))
        self._last, self._last_running = progress, progress.running
        if progress.running or progress.finished == progress.runs:
            self._busy_s = time.monotonic()
        elif time.monotonic() - self._busy_s > REPORT_WAIT_AFTER_S:
            self._busy_s = math.inf  # report it once, until the next run starts
            self._on_progress("Waiting for a device: another study uses it, or the next block is still in a queue.")

    def _line(self, progress: Progress) -> str:
        line = f"run {progress.finished + 1} of {progress.runs} · {', '.join(progress.running)}"
        if progress.mean_run_s is None:
            return line
        left_s = progress.mean_run_s * (progress.runs - progress.finished) / max(1, len(progress.running))
        return f"{line} · about {format_duration(left_s * 1e9)} left"
