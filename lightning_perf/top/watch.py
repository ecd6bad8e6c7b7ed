"""The state of a run, read from its growing logs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.steps.step_times import StepTimes, summarize_step_times
from lightning_perf.errors import TraceError
from lightning_perf.run_files.captures import CAPTURES
from lightning_perf.run_files.hangs import HangReport, open_hangs
from lightning_perf.run_files.numerics.samples import SCALE_EVENTS, ScaleEvent
from lightning_perf.run_files.run_folder import RankMarkers
from lightning_perf.run_files.run_record import RECORD_NAME, RUN_RECORD, EpochEnded, RunEnded
from lightning_perf.run_files.steps import STEPS, StepsTail

LATEST_STEPS = 50
"""Steps behind the figures of the moment. The callback writes at least that often."""

KEPT_STEPS = 5_000
"""Steps behind the usual step time and the slow steps."""

_RANK = re.compile(r"\.rank(\d+)\.jsonl$")


class RankState(Struct, frozen=True):
    """The state of one rank.

    Attributes:
        step_ns: Median time of the latest steps.
        usual: Times of the last 5,000 steps, with their slow outliers.
        data_wait_share: Share of the latest steps' time spent waiting for batches, 0 to 1.
        samples_per_second: Samples per second in the latest steps; None if they are not counted.
        age_s: Time since the last write.
    """

    rank: int
    steps: int
    step_ns: float
    usual: StepTimes
    data_wait_share: float
    samples_per_second: float | None
    loss_scale: float | None
    skipped_steps: int
    captures: int
    age_s: float
    latest_ns: tuple[int, ...]


class RunState(Struct, frozen=True):
    """The state of a run.

    Attributes:
        ranks: Its ranks, as far as they have written a step.
        epoch: The last epoch that has ended, with its metrics; None before the first.
        ended: How the run ended; None while it trains, or without a run record.
        problems: Files that could not be read.
        hangs: Reports of ranks in which no step or batch has ended for long; of each rank the last one.
        gone: Ranks that did not end, and have no process any more.
        now_s: Unix time at which the logs were read.
    """

    folder: Path
    ranks: tuple[RankState, ...]
    epoch: EpochEnded | None
    ended: RunEnded | None
    problems: tuple[str, ...]
    hangs: tuple[HangReport, ...] = ()
    gone: tuple[int, ...] = ()
    now_s: float = 0.0


class RunWatch:
    """Reads the logs of a run again and again, only the new part of each."""

    def __init__(self, folder: Path, *, now_s: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now_s = now_s
        self._ranks: dict[int, _RankLogs] = {}

    def read(self) -> RunState:
        """Read the lines that were written since the last call."""
        problems: list[str] = []
        for path in STEPS.paths(self._folder):
            found = _RANK.search(path.name)
            if found is not None and int(found[1]) not in self._ranks:
                self._ranks[int(found[1])] = _RankLogs(self._folder, int(found[1]))
        states = []
        for _, logs in sorted(self._ranks.items()):
            try:
                state = logs.read(self._now_s())
            except (OSError, TraceError) as error:
                problems.append(str(error))
                continue
            if state is not None:
                states.append(state)
        epoch, ended = None, None
        hangs: tuple[HangReport, ...] = ()
        record = self._folder / RECORD_NAME
        try:
            for line in RUN_RECORD.iterate(record) if record.exists() else ():
                epoch = line if isinstance(line, EpochEnded) else epoch
                ended = line if isinstance(line, RunEnded) else ended
        except TraceError as error:
            problems.append(str(error))
        try:
            hangs = open_hangs(self._folder)
        except TraceError as error:
            problems.append(str(error))
        gone = tuple(RankMarkers(self._folder).dead()) if ended is None else ()
        return RunState(self._folder, tuple(states), epoch, ended, tuple(problems), hangs, gone, self._now_s())


class _RankLogs:
    """The logs of one rank, and how far they have been read."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._rank = rank
        self._steps_path = STEPS.path(folder, rank)
        self._tail = StepsTail(self._steps_path, KEPT_STEPS)
        self._scale_path = SCALE_EVENTS.path(folder, rank)
        self._scale_position = 0
        self._scale: ScaleEvent | None = None
        self._skipped = 0
        self._captures_path = CAPTURES.path(folder, rank)

    def read(self, now_s: float) -> RankState | None:
        samples = self._tail.read_on()
        if not len(samples):
            return None
        self._read_scale()
        captures = len(CAPTURES.read(self._captures_path)) if self._captures_path.exists() else 0
        latest = samples[-LATEST_STEPS:]
        if not latest.profiled.all():
            latest = latest[~latest.profiled]  # the profiler slows a step down
        whole = self._tail.count == len(samples)
        wall_ns = int(latest.step_ns.sum())
        counted = latest.samples >= 0
        counted_ns = int(latest.step_ns[counted].sum())
        return RankState(
            rank=self._rank,
            steps=self._tail.count,
            step_ns=float(np.median(latest.step_ns)),
            usual=summarize_step_times(samples) if whole else summarize_step_times(samples, warmup_steps=0),
            data_wait_share=float(latest.data_wait_ns.sum()) / wall_ns if wall_ns else 0.0,
            samples_per_second=int(latest.samples[counted].sum()) / counted_ns * 1e9 if counted_ns else None,
            loss_scale=self._scale.scale if self._scale is not None else None,
            skipped_steps=self._skipped,
            captures=captures,
            age_s=max(now_s - self._steps_path.stat().st_mtime, 0.0),
            latest_ns=tuple(samples.step_ns[-LATEST_STEPS:].tolist()),
        )

    def _read_scale(self) -> None:
        if not self._scale_path.exists():
            return
        events, self._scale_position = SCALE_EVENTS.read_on(self._scale_path, self._scale_position)
        self._skipped += sum(event.kind == "overflow" for event in events)
        self._scale = events[-1] if events else self._scale


def find_newest_log(folder: Path) -> Path | None:
    """Find the run below a folder with the step times that were written last."""
    found = []
    for path in (*folder.rglob("steps.rank*.jsonl"), *folder.rglob("hang.rank*.jsonl")):
        with suppress(OSError):  # removed in the meantime
            if not any(part.startswith(".") for part in path.relative_to(folder).parts):
                found.append((path.stat().st_mtime, path.parent))
    return max(found)[1] if found else None
