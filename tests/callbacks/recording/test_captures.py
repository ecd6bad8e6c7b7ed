"""Captures: step by step on a clock of their own, and in real trainings."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from lightning_perf import CaptureOptions, PerfCallback, analyze
from lightning_perf.callbacks.recording.captures import (
    AGREED_AHEAD_NS,
    LIMIT_EVERY,
    LOOK_EVERY_NS,
    Captures,
    FileRequests,
    SignalRequests,
    SlowStepDetector,
)
from lightning_perf.callbacks.recording.recording_plan import LEAST_HISTORY, Recording
from lightning_perf.callbacks.recording.schedule import Action, Schedule, WindowPlan
from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.run_files.captures import CAPTURES, CaptureRecord, CaptureTrigger, RecordedWindow, Slowdown
from lightning_perf.run_files.steps import StepSample
from tests.callbacks.training import Points, context, loader, make_module, make_trainer, step_marks

MS = 1_000_000
needs_signal = pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="this system has no SIGUSR2")


class Run:
    """Steps on a hand-driven clock; the profiler is at work where the plan says so."""

    def __init__(self, folder: Path, schedule: Schedule | None = None, **options: Any) -> None:
        self.folder, self.now_ns, self.state = folder, 0, FitState(first_number=1000)
        self.plan = WindowPlan(schedule or Schedule(skip_first=100_000), folder)
        self.captures = Captures(
            CaptureOptions(**options), context(folder, state=self.state), folder, self.plan, now_ns=lambda: self.now_ns
        )

    def step(self, time_ms: float, *, checkpoint: bool = False, interrupted: bool = False) -> None:
        self.state.profiling = self.plan.action(self.state.step) is not Action.REST
        self.state.checkpoint_saved = checkpoint
        self.captures.on_step_start()
        self.now_ns += round(time_ms * MS)
        if interrupted:
            self.captures.on_training_pause()
            self.captures.on_training_resume()
        self.captures.on_sample(StepSample(self.state.number, round(time_ms * MS), 0, None, None, False))
        self.captures.on_step_end()
        self.state.step += 1

    def steps(self, number: int, time_ms: float) -> None:
        for _ in range(number):
            self.step(time_ms)

    def folders(self) -> list[str]:
        path = self.folder / "captures.rank0.jsonl"
        return [record.folder for record in CAPTURES.read(path)] if path.exists() else []


def test_slow_steps_start_a_capture_at_the_next_step(tmp_path: Path) -> None:
    run = Run(tmp_path, warmup=1, active=2)
    run.steps(40, 10)
    run.steps(3, 30)
    assert [run.plan.action(step).value for step in range(42, 47)] == ["rest", "warm up", "record", "record", "rest"]
    slowdown = Slowdown(usual_ns=10 * MS, limit_ns=round(12.5 * MS), step_ns=(30 * MS,) * 3)
    record = CaptureRecord("slow-step-1043", CaptureTrigger.SLOW_STEPS, 1042, slowdown)
    assert CAPTURES.read(tmp_path / "captures.rank0.jsonl") == (record,)


def test_a_step_with_a_checkpoint_or_after_a_pause_is_not_judged(tmp_path: Path) -> None:
    run = Run(tmp_path, sustained=1)
    run.steps(40, 10)
    for _ in range(5):
        run.step(500, checkpoint=True)
        run.step(10)
        run.captures.on_training_pause()
        run.step(500)
        run.step(10)
        run.step(500, interrupted=True)
        run.step(500)  # the first one after
        run.step(10)
    assert run.folders() == []
    run.step(500)
    assert len(run.folders()) == 1


def test_steps_under_the_profiler_and_the_first_after_are_not_judged(tmp_path: Path) -> None:
    run = Run(tmp_path, Schedule(skip_first=40, warmup=1, active=3), sustained=1)
    run.steps(40, 10)
    run.steps(5, 500)
    assert run.folders() == []
    run.step(500)
    assert run.folders() == ["slow-step-1046"]


def test_captures_are_bounded_in_number_and_spaced(tmp_path: Path) -> None:
    run = Run(tmp_path, warmup=0, active=1, cooldown=20, max_captures=3, sustained=1)
    run.steps(40, 10)
    for _ in range(60):
        run.steps(3, 10)
        run.step(100)
    steps = [int(folder.rsplit("-", 1)[1]) for folder in run.folders()]
    assert len(steps) == 3
    assert all(after - before > 20 for before, after in itertools.pairwise(steps))


def window(trace_bytes: int) -> RecordedWindow:
    return RecordedWindow("slow-step-1041", 1041, 1041, 1, 0, 0, trace_bytes)


def test_captures_are_bounded_by_the_disk(tmp_path: Path) -> None:
    run = Run(tmp_path, warmup=0, active=1, cooldown=0, sustained=1, max_bytes=1000)
    run.steps(40, 10)
    run.step(100)
    run.captures.on_window(window(999))
    run.steps(9, 10)
    run.step(100)
    run.captures.on_window(window(1))
    assert not run.captures.notes()
    run.steps(9, 10)
    run.step(100)
    (tmp_path / "profile-now").touch()
    run.step(2000)
    assert len(run.folders()) == 2
    assert run.captures.notes() == ["Captures take max_bytes of the disk: further ones were left out."]


def test_a_request_waits_for_the_schedules_window(tmp_path: Path) -> None:
    run = Run(tmp_path, Schedule(skip_first=3, warmup=1, active=3), warmup=0, active=2)
    run.step(1)
    (tmp_path / "profile-now").touch()
    run.step(1000)
    assert run.folders() == []
    run.steps(8, 10)
    assert run.folders() == ["on-demand-1007"]


def slow(size: int, events: dict[int, Callable[[], object]]) -> DataLoader[Any]:
    """Points at some of which something happens."""
    return DataLoader(Points(size, lambda index: (time.sleep(0.002), events.get(index, int)())), 1)


def capturing(tmp_path: Path, *, skip_first: int = 5, active: int = 3, **options: Any) -> PerfCallback:
    """A callback that records one short window and captures by these options."""
    return PerfCallback(
        skip_first=skip_first,
        warmup=1,
        active=active,
        dirpath=tmp_path / "perf",
        report="none",
        capture_slow_steps=CaptureOptions(**options),
    )


def test_a_training_that_turns_slow(tmp_path: Path) -> None:
    callback = capturing(tmp_path, min_excess=4.0, on_file=False, max_captures=1)
    make_trainer(tmp_path, callback).fit(
        make_module(), slow(70, dict.fromkeys(range(50, 58), lambda: time.sleep(0.148)))
    )
    report = analyze(tmp_path / "perf")
    (capture,) = report.captures
    assert capture.folder == f"slow-step-{capture.step + 1}"
    assert capture.step in (50, 51, 52)  # the third slow one; a busy machine may slow down steps before 50, too
    assert (capture.trigger, capture.ranks, capture.rank, capture.recorded_steps) == (
        CaptureTrigger.SLOW_STEPS,
        (0,),
        0,
        3,
    )
    (file,) = (tmp_path / "perf" / capture.folder).iterdir()
    first = capture.step + 2
    assert [mark.name for mark in step_marks(file)] == [f"ProfilerStep#{step}" for step in range(first, first + 3)]
    assert capture.diff is not None
    # 148 ms more in each fetch: that is what the input has more, within what a busy machine adds.
    (grown,) = [row for row in capture.diff.categories.rows if row.name == "input"]
    assert 100 * MS < grown.change_ns < 250 * MS
    assert "A step takes" in report.verdict.where, "the report is of the scheduled window"
    assert all("slow-step" not in source for source in report.sources)
    assert report.trust is not None
    assert [window.window.capture for window in report.trust.windows] == ["", capture.folder]
    assert analyze(tmp_path).sources == report.sources, "a capture is no run of its own"
    assert len(analyze(tmp_path / "perf" / capture.folder).ranks) == 1


@needs_signal
def test_a_training_that_is_asked_by_a_file_and_by_a_signal(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    # The file is looked for at the first step's end, then a second later: one step is long enough for one more look.
    data = slow(
        40,
        {
            10: (tmp_path / "perf" / "profile-now").touch,
            12: lambda: time.sleep(1.1),
            25: lambda: os.kill(os.getpid(), signal.SIGUSR2),
        },
    )
    callback = capturing(tmp_path, skip_first=2, active=2, on_signal=True, max_captures=0)
    make_trainer(tmp_path, callback).fit(make_module(), data)
    found = {capture.trigger: capture for capture in analyze(tmp_path / "perf").captures}
    assert set(found) == {CaptureTrigger.FILE, CaptureTrigger.SIGNAL}
    assert found[CaptureTrigger.SIGNAL].folder == "on-demand-26"
    assert found[CaptureTrigger.SIGNAL].slowdown is None
    assert not (tmp_path / "perf" / "profile-now").exists()
    assert signal.getsignal(signal.SIGUSR2) == before


@needs_signal
def test_the_signals_handler_is_restored_after_an_error(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    callback = PerfCallback(report="none", capture_slow_steps=CaptureOptions(on_signal=True))

    def fails(self: Any, batch: Any, batch_idx: int) -> None:
        assert signal.getsignal(signal.SIGUSR2) != before
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make_trainer(tmp_path, callback).fit(make_module(training_step=fails), loader(3))
    assert signal.getsignal(signal.SIGUSR2) == before


def test_without_the_option_nothing_is_captured_or_watched(tmp_path: Path) -> None:
    (tmp_path / "perf").mkdir()
    callback = PerfCallback(dirpath=tmp_path / "perf", report="none")
    make_trainer(tmp_path, callback).fit(make_module(), loader(10))
    assert not list((tmp_path / "perf").glob("captures*"))
    assert analyze(tmp_path / "perf").captures == ()


SECOND = 1_000_000_000


def test_a_touched_file_is_taken_once(tmp_path: Path) -> None:
    requests = FileRequests(tmp_path, rank=0, world_size=1)
    assert requests.look(0, 5, 100) is None
    (tmp_path / "profile-now").touch()
    assert requests.look(LOOK_EVERY_NS - 1, 6, 100) is None  # looked for once a second
    assert requests.look(LOOK_EVERY_NS, 7, 100) == 7
    assert not (tmp_path / "profile-now").exists()
    assert requests.look(3 * LOOK_EVERY_NS, 8, 100) is None


def test_all_ranks_start_at_one_step_that_none_has_reached(tmp_path: Path) -> None:
    ranks = [FileRequests(tmp_path, rank=rank, world_size=3) for rank in range(3)]
    (tmp_path / "profile-now").touch()
    assert ranks[1].look(0, 40, SECOND // 10) is None  # rank 0 has not seen it yet
    start = ranks[0].look(0, 40, SECOND // 10)
    assert start == 40 + AGREED_AHEAD_NS * 10 // SECOND
    assert [rank.look(SECOND, 50, SECOND // 10) for rank in ranks[1:]] == [start, start]
    assert [rank.look(3 * SECOND, 60, SECOND // 10) for rank in ranks] == [None, None, None]
    assert not (tmp_path / "profile-now").exists()


def test_an_answer_of_an_earlier_fit_is_none_to_this(tmp_path: Path) -> None:
    (tmp_path / ".profile-at").write_text("17")
    assert FileRequests(tmp_path, rank=1, world_size=2).look(0, 5, 100) is None
    (tmp_path / ".profile-at").write_text("no number")
    assert FileRequests(tmp_path, rank=1, world_size=2).look(0, 5, 100) is None


@needs_signal
def test_a_signal_is_heard_once_with_the_handler_of_the_user_and_a_later_one_is_left_alone() -> None:
    calls: list[int] = []

    def own(number: int, frame: Any) -> None:
        calls.append(number)

    before = signal.signal(signal.SIGUSR2, own)
    try:
        for later in (None, signal.SIG_IGN):
            requests = SignalRequests()
            assert not requests.take()
            os.kill(os.getpid(), signal.SIGUSR2)
            assert requests.take()
            assert not requests.take()
            if later is not None:
                signal.signal(signal.SIGUSR2, later)
            requests.remove()
            assert signal.getsignal(signal.SIGUSR2) is (later or own)
        assert calls == [signal.SIGUSR2] * 2
    finally:
        signal.signal(signal.SIGUSR2, before)


@needs_signal
def test_another_thread_cannot_have_a_signal() -> None:
    with ThreadPoolExecutor() as pool, pytest.raises(RuntimeError, match="in the main thread only"):
        pool.submit(SignalRequests).result()


def brute_force(times: list[int], config: CaptureOptions) -> list[int]:
    """Positions at which a capture starts, by the rule of the documentation, with the limit renewed as ours is."""
    found: list[int] = []
    usual: list[int] = []
    row: list[int] = []
    limit, age = None, 0
    for place, step_ns in enumerate(times):
        slow = limit is not None and step_ns > limit
        if slow:
            row.append(step_ns)
            if len(row) < config.sustained:
                continue
            found.append(place)
        if row:
            usual, row, age = usual + row, [], LIMIT_EVERY
        if not slow:
            usual.append(step_ns)
            age += 1
        last = np.array(usual[-config.history :], dtype=float)
        if age >= LIMIT_EVERY and len(last) >= LEAST_HISTORY:
            deviation = 1.4826 * np.median(np.abs(last - np.median(last)))
            limit = round(np.median(last) + max(config.deviations * deviation, config.min_excess * np.median(last)))
            age = 0
    return found


def detected(times: list[int], config: CaptureOptions) -> list[int]:
    detector = SlowStepDetector(config)
    return [place for place, time in enumerate(times) if detector.add(time) is not None]


@pytest.mark.parametrize("seed", range(5))
def test_it_agrees_with_a_second_implementation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = rng.normal(10_000, 300, 600)
    for start in rng.integers(30, 560, 6):
        times[start : start + rng.integers(1, 9)] *= rng.uniform(1.1, 3)
    config = CaptureOptions(history=int(rng.integers(20, 120)), sustained=int(rng.integers(1, 5)))
    found = detected([round(time) for time in times], config)
    assert found == brute_force([round(time) for time in times], config)
    if seed == 0:
        assert found


@pytest.mark.parametrize(
    ("times", "options", "found"),
    [
        ([100] * 30 + [500, 100, 500, 500, 100] * 20, {}, []),  # single slow steps
        ([100] * (LEAST_HISTORY - 1) + [900] * 3, {}, []),  # without a history
        ([1000] * 50 + [1249] * 9, {}, []),  # a quiet run has a margin
        ([1000] * 50 + [1251] * 9, {}, [52, 55, 58]),
        # A change that lasts becomes the usual.
        ([100] * 60 + [200] * 300, {"history": 40, "sustained": 3}, [62, 65, 68, 71, 74, 77, 80]),
    ],
)
def test_what_is_slow(times: list[int], options: dict[str, Any], found: list[int]) -> None:
    assert detected(times, CaptureOptions(**options)) == found


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"history": 10}, ValueError, "history=10 is too small: give 20 or more"),
        ({"sustained": 0}, ValueError, "sustained=0"),
        ({"active": 0}, ValueError, "active=0"),
        ({"deviations": -1.0}, ValueError, "deviations"),
        ({"min_excess": float("nan")}, ValueError, "min_excess=nan"),
        ({"max_bytes": 1.5}, TypeError, "max_bytes must be a whole number"),
        ({"cooldown": True}, TypeError, "cooldown"),
        ({"on_signal": 1}, TypeError, "on_signal must be True or False"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CaptureOptions(**options)


def test_true_means_the_defaults() -> None:
    assert Recording(capture_slow_steps=True).captures == CaptureOptions()
    assert Recording().captures is None
    with pytest.raises(TypeError, match="capture_slow_steps must be True, False or a CaptureOptions, not 3"):
        PerfCallback(capture_slow_steps=3)  # type: ignore[arg-type]
