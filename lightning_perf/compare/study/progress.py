"""Progress of a study, read from its folder, so that it looks the same with every engine."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lightning_perf.compare.study.definition import Study
from lightning_perf.compare.study.results import block_states, code_changes
from lightning_perf.run_files.journal import device_warm_ups, read_block
from lightning_perf.units import format_duration

REPORT_WAIT_AFTER_S = 3.0
"""Report waiting after this many seconds without a run. The pause between two runs is shorter."""


@dataclass(frozen=True)
class Progress:
    """The progress of a study: finished and running runs, and the problems so far.

    Attributes:
        runs: Total number of runs if nothing fails, warm-ups included. Warm-ups of further devices count once they
            have started.
        finished: How many of those have finished.
        running: The current runs, e.g. ``block 2 of 6: amp``.
        mean_run_s: Mean time of a finished run; None before the first has finished.
        code_changes: A line for each change of the code since the first run.
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
