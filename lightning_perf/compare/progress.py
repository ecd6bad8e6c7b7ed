"""Progress of a study, read from its folder, so that it looks the same whatever engine runs it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.compare.journal import read_block
from lightning_perf.units import format_duration

if TYPE_CHECKING:
    from lightning_perf.compare.study import Study

__all__ = ["Progress", "ProgressLines", "read_progress"]


@dataclass(frozen=True)
class Progress:
    """How far a study is.

    Attributes:
        runs: Runs it takes when nothing fails, the warm-up included.
        finished: Runs finished that count towards those.
        running: Running runs, as ``block 2 of 6: amp``.
        mean_run_s: Mean time of a run so far; None before the first has finished.
        events: What went wrong so far.
    """

    runs: int
    finished: int
    running: tuple[str, ...]
    mean_run_s: float | None
    events: tuple[str, ...]


def read_progress(study: Study, folder: Path) -> Progress:
    """Read how far a study is from its journals."""
    finished = 0
    running: list[str] = []
    seconds: list[float] = []
    events: list[str] = []
    for block in range(study.blocks + 1):
        state = read_block(folder, block)
        name = "warm-up" if block == 0 else f"block {block} of {study.blocks}"
        finished += len(state.finished)
        seconds += state.seconds
        events += [f"{name}: {event}" for event in state.events]
        if state.over and not state.done:
            finished += len(study.arms) - len(state.finished)
        if state.open_run is not None and not state.over:
            running.append(f"{name}: {state.open_run.arm}")
    return Progress(
        runs=(study.blocks + 1) * len(study.arms),
        finished=finished,
        running=tuple(running),
        mean_run_s=sum(seconds) / len(seconds) if seconds else None,
        events=tuple(events),
    )


class ProgressLines:
    """Says a line when something changed.

    Args:
        study: The study.
        folder: Its folder.
        say: Takes the lines.
    """

    def __init__(self, study: Study, folder: Path, say: Callable[[str], None]) -> None:
        self._study, self._folder, self._say = study, folder, say
        self._last = read_progress(study, folder)
        self._begin = time.monotonic()
        if self._last.finished:
            say(f"Going on: {self._last.finished} of {self._last.runs} runs are finished.")
        self._last_running: tuple[str, ...] = ()

    def tick(self) -> None:
        """Read the progress and say what is new."""
        progress = read_progress(self._study, self._folder)
        for event in progress.events[len(self._last.events) :]:
            self._say(event)
        if progress.running != self._last_running and progress.running:
            self._say(self._line(progress))
        self._last, self._last_running = progress, progress.running

    def _line(self, progress: Progress) -> str:
        line = f"run {progress.finished + 1} of {progress.runs} · {', '.join(progress.running)}"
        if progress.mean_run_s is None:
            return line
        left_s = progress.mean_run_s * (progress.runs - progress.finished) / max(1, len(progress.running))
        return f"{line} · about {format_duration(left_s * 1e9)} left"
