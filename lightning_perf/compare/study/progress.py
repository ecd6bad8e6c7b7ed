"""Progress of a study, read from its folder, so that it looks the same whatever engine runs it."""

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

__all__ = ["Progress", "ProgressLines", "read_progress"]

WAIT_TOLD_S = 3.0
"""Seconds without a run after which that is said: longer than it takes to go from one to the next."""


@dataclass(frozen=True)
class Progress:
    """How far a study is.

    Attributes:
        runs: Runs it takes when nothing fails, warm-ups included, of further devices as far as these have begun.
        finished: Runs finished that count towards those.
        running: Running runs, as ``block 2 of 6: amp``.
        mean_run_s: Mean time of a run so far; None before the first has finished.
        events: What went wrong so far.
        code_changes: Where the code changed meanwhile.
    """

    runs: int
    finished: int
    running: tuple[str, ...]
    mean_run_s: float | None
    events: tuple[str, ...]
    code_changes: tuple[str, ...]


def read_progress(study: Study, folder: Path) -> Progress:
    """Read how far a study is from its journals."""
    finished = 0
    running: list[str] = []
    seconds: list[float] = []
    events: list[str] = []
    states = block_states(study, folder)
    warm_ups = {device: read_block(folder, 0, device) for device in device_warm_ups(folder)}
    named = [(f"block {block} of {study.blocks}" if block else "warm-up", state) for block, state in states.items()]
    named += [(f"warm-up on {device}", state) for device, state in warm_ups.items()]
    for name, state in named:
        finished += len(state.finished)
        seconds += state.seconds
        events += [f"{name}: {event}" for event in state.events]
        if state.over and not state.done:
            finished += len(study.arms) - len(state.finished)
        if state.open_run is not None and not state.over:
            running.append(f"{name}: {state.open_run.arm}")
    return Progress(
        runs=len(named) * len(study.arms),
        finished=finished,
        running=tuple(running),
        mean_run_s=sum(seconds) / len(seconds) if seconds else None,
        events=tuple(events),
        code_changes=code_changes(states),
    )


class ProgressLines:
    """Says a line when something changed.

    Args:
        study: The study.
        folder: Its folder.
        on_progress: Called with each line of progress.
        resumed: Whether to report the runs that are finished already.
    """

    def __init__(self, study: Study, folder: Path, on_progress: Callable[[str], None], *, resumed: bool = True) -> None:
        self._study, self._folder, self._on_progress = study, folder, on_progress
        self._last = read_progress(study, folder)
        if self._last.finished and resumed:
            on_progress(f"Going on: {self._last.finished} of {self._last.runs} runs are finished.")
        self._last_running: tuple[str, ...] = ()
        self._busy_s = time.monotonic()

    def tick(self) -> None:
        """Read the progress and say what is new."""
        progress = read_progress(self._study, self._folder)
        # By count, not by place: blocks that run side by side add theirs amid the others'.
        for event in (Counter(progress.events) - Counter(self._last.events)).elements():
            self._on_progress(event)
        for change in progress.code_changes[len(self._last.code_changes) :]:
            self._on_progress(f"{change} Unless that is undone the comparison needs --allow code.")
        if progress.running != self._last_running and progress.running:
            self._on_progress(self._line(progress))
        self._last, self._last_running = progress, progress.running
        if progress.running or progress.finished == progress.runs:
            self._busy_s = time.monotonic()
        elif time.monotonic() - self._busy_s > WAIT_TOLD_S:
            self._busy_s = math.inf  # once, until a run begins
            self._on_progress("Waiting for a device: what the next run needs is taken, by another study or in a queue.")

    def _line(self, progress: Progress) -> str:
        line = f"run {progress.finished + 1} of {progress.runs} · {', '.join(progress.running)}"
        if progress.mean_run_s is None:
            return line
        left_s = progress.mean_run_s * (progress.runs - progress.finished) / max(1, len(progress.running))
        return f"{line} · about {format_duration(left_s * 1e9)} left"
