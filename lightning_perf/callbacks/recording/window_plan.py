"""Which steps are recorded and where to: the schedule's windows, and captures between them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lightning_perf.callbacks.recording.schedule import Action, Schedule

__all__ = ["WindowPlan"]


@dataclass(frozen=True)
class _Capture:
    schedule: Schedule
    folder: str
    end: int


class WindowPlan:
    """A schedule that captures can be added to while the fit goes on.

    Args:
        schedule: The scheduled windows.
        folder: The run's folder. Traces of the schedule go there, and those of a capture into a folder in it.
    """

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self._schedule = schedule
        self._folder = folder
        self._capture: _Capture | None = None

    def capture(self, start: int, *, warmup: int, active: int, folder: str) -> bool:
        """Add a capture.

        Args:
            start: Its first step, counted from 0 at the start of the fit; a step that has not begun.
            warmup: Steps in which the profiler keeps nothing.
            active: Steps recorded.
            folder: Name of its folder.

        Returns:
            False, and nothing is added, when another window lies in the way.
        """
        end = start + warmup + active
        # The step before has not ended yet where this is called: its capture must not be replaced under it.
        if self._capture is not None and start <= self._capture.end:
            return False
        if any(self._schedule.action(step) is not Action.REST for step in range(start, end)):
            return False
        own = Schedule(skip_first=start, wait=0, warmup=warmup, active=active, repeat=1)
        self._capture = _Capture(own, folder, end)
        return True

    def action(self, step: int) -> Action:
        """What the profiler does in a step."""
        return (self._schedule if self._capture is None else self._of(step)).action(step)

    def ends_window(self, step: int) -> bool:
        """Whether `step` is the last one of its window."""
        return self._of(step).ends_window(step)

    def capture_at(self, step: int) -> str:
        """Name of the capture that a step belongs to; empty for one of the schedule."""
        capture = self._capture
        return capture.folder if capture is not None and capture.schedule.action(step) is not Action.REST else ""

    def folder_for(self, capture: str) -> Path:
        """The folder of a capture, or of the run for an empty name; it is made if need be.

        Raises:
            OSError: It cannot be made.
        """
        folder = self._folder / capture
        folder.mkdir(exist_ok=True)
        return folder

    def _of(self, step: int) -> Schedule:
        capture = self._capture
        in_capture = capture is not None and capture.schedule.action(step) is not Action.REST
        return capture.schedule if capture is not None and in_capture else self._schedule
