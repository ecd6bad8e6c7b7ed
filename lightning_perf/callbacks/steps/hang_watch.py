"""Reports where a rank is when no step or batch has ended for long. It never ends a training."""

from __future__ import annotations

import faulthandler
import os
import threading
import time
import weakref
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path

from msgspec.structs import replace

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.steps.fit_state import FitState, StepObserver
from lightning_perf.callbacks.steps.position import (
    children,
    last_collective,
    position_of,
    stack_of,
    stacks,
    state_of,
)
from lightning_perf.run_files.hangs import HANGS, HangReport, stacks_path
from lightning_perf.run_files.jsonl import LogWriter
from lightning_perf.run_files.run_folder import RankMarkers
from lightning_perf.units import format_duration

LOOK_EVERY_S = 1.0
"""Time between two looks at the counters, or a tenth of the limit if that is shorter."""

MAX_WORKERS = 16
MAX_NAMED = 4
"""Child processes in a report, and in its warning."""

_armed: weakref.WeakSet[HangWatch] = weakref.WeakSet()


class HangWatch(StepObserver):
    """A thread that looks at the counters of steps and batches, and reports when none has changed for `after_s`.

    A step itself costs nothing. The next report of the same standstill comes after twice the time. A phase that took
    long and then ended, such as a validation, has twice its time from then on.

    The thread cannot run while an extension holds Python's global lock. So it also sets the timer of faulthandler, a
    thread in C, and sets it back as long as it runs itself.

    Args:
        progress: Returns counters of everything that counts as progress.
    """

    def __init__(
        self,
        after_s: float,
        state: FitState,
        progress: Callable[[], tuple[int, ...]],
        *,
        folder: Path | None,
        rank: int,
        errors: ErrorReporter,
    ) -> None:
        self._after_s = after_s
        self._look_s = min(LOOK_EVERY_S, after_s / 10)
        self._state = state
        self._progress = progress
        self._folder = folder
        self._rank = rank
        self._errors = errors
        path = HANGS.path(folder, rank) if folder is not None else None
        self._log = LogWriter(HANGS, path, errors.report, "hangs are no longer saved")
        self._thread = threading.get_ident()
        self._done = threading.Event()
        self._lock = threading.Lock()  # of the file and its timer
        self._file: TextIOWrapper | None = None
        self._latest: HangReport | None = None
        self._patience_s: dict[str, float] = {}
        self._counts: tuple[int, ...] = ()
        self._since_s = self._looked_s = self._armed_s = time.monotonic()
        self._next_s = after_s

    def start(self) -> None:
        """Watch until `close`."""
        if self._folder is not None:
            self._file = stacks_path(self._folder, self._rank).open("a", encoding="utf-8", errors="replace")
            _armed.add(self)
            self._arm(time.monotonic())
        self._counts = self._progress()
        threading.Thread(target=self._run, name="lightning-perf hang watch", daemon=True).start()

    def close(self) -> None:
        """Stop to watch, and remove the file of stacks if it is empty. A second call does nothing."""
        self._done.set()
        _armed.discard(self)
        with self._lock:
            file, self._file = self._file, None
            if file is None:
                return
            faulthandler.cancel_dump_traceback_later()
            file.close()
        path = Path(file.name)
        if not path.stat().st_size:
            path.unlink()

    def disarm(self) -> None:
        """Stop the timer in C until the next look."""
        with self._lock:
            self._armed_s = float("-inf")
            faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        with self._errors.instead("hangs are no longer watched", kind="hangs"):
            while not self._done.wait(self._look_s):
                self.look(time.monotonic())

    def look(self, now_s: float) -> None:
        """Look at the counters once."""
        gap_s = now_s - self._looked_s - self._look_s
        if gap_s > self._after_s / 2:  # the whole process was stopped, or this thread could not run
            self._since_s += gap_s
        self._looked_s = now_s
        counts = self._progress()
        if counts != self._counts:
            self._continue(now_s)
            self._counts, self._since_s, self._next_s = counts, now_s, self._after_s
        elif now_s - self._since_s >= self._next_s:
            self._report(now_s - self._since_s)
        if now_s - self._armed_s >= self._after_s / 2:
            self._arm(now_s)

    def _arm(self, now_s: float) -> None:
        """Set the timer of faulthandler back. Each time costs a new thread, so this is done rarely."""
        with self._lock:
            if self._file is not None:
                self._armed_s = now_s
                faulthandler.dump_traceback_later(2 * self._after_s, file=self._file)

    def _continue(self, now_s: float) -> None:
        report, self._latest = self._latest, None
        if report is None:
            return
        seconds = now_s - self._since_s
        self._patience_s[report.phase] = 2 * seconds
        self._log.append(replace(report, seconds=round(seconds, 1), workers=(), collective="", continued=True))

    def _report(self, seconds: float) -> None:
        phase, place = position_of(self._thread)
        patience_s = self._patience_s.get(phase, 0.0)
        if seconds < patience_s:
            self._next_s = patience_s
            return
        self._next_s = 2 * seconds
        workers = children()[:MAX_WORKERS]
        report = HangReport(
            rank=self._rank,
            step=self._state.first_number + self._state.whole_steps,
            phase=phase,
            place=place,
            since_s=time.time() - seconds,
            seconds=round(seconds, 1),
            workers=tuple(map(state_of, workers)),
            collective=last_collective(),
        )
        first, self._latest = self._latest is None, report
        self._log.append(report)
        if first:
            self._warn(report)
        self._write_stacks(report, workers)

    def _warn(self, report: HangReport) -> None:
        text = (
            f"{self._errors.name}: on rank {self._rank}, no step or batch has ended for "
            f"{format_duration(1e9 * report.seconds)}. It is in step {report.step}, {report.phase}: {report.place}."
        )
        others = [f"Child {each}." for each in report.workers[:MAX_NAMED]]
        others += [f"Last collective: {report.collective}."] if report.collective else []
        gone = RankMarkers(self._folder).dead() if self._folder is not None else []
        others += [f"The process of rank {rank} is gone." for rank in gone]
        others += [f"Python stacks: {self._file.name}."] if self._file is not None else []
        self._errors.warn(" ".join([text, *others, "The training is left alone."]))

    def _write_stacks(self, report: HangReport, workers: list[int]) -> None:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        lines = [
            f"{now}: rank {self._rank}, step {report.step}, {report.phase}, for {report.seconds:g} s",
            f"Last collective: {report.collective}" if report.collective else "",
            *stacks(),
            *report.workers,
            *map(stack_of, workers),
        ]
        with self._lock:
            if self._file is not None:
                self._file.write("\n".join(filter(None, lines)) + "\n\n")
                self._file.flush()


def _disarm_before_fork() -> None:
    """Stop the timers: a child that has inherited one would wait for its thread forever when it ends."""
    for watch in tuple(_armed):
        watch.disarm()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_disarm_before_fork)
