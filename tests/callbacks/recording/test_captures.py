"""Captures: step by step on a clock of their own, and in real trainings."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from lightning_perf import CaptureOptions, PerfCallback, analyze
from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.recording.captures import Captures
from lightning_perf.callbacks.recording.schedule import Action, Schedule, WindowPlan
from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.run_files.captures import CAPTURES, CaptureTrigger
from tests.callbacks.training import Points, loader, make_module, make_trainer, step_marks

MS = 1_000_000


class Run:
    """Steps on a hand-driven clock; the profiler is at work where the plan says so."""

    def __init__(self, folder: Path, schedule: Schedule | None = None, **options: Any) -> None:
        self.folder, self.now_ns, self.state = folder, 0, FitState(first_number=1000)
        self.plan = WindowPlan(schedule or Schedule(skip_first=100_000), folder)
        self.captures = Captures(
            CaptureOptions(**options),
            self.state,
            plan=self.plan,
            rank=0,
            world_size=1,
            folder=folder,
            errors=ErrorReporter(),
            now_ns=lambda: self.now_ns,
        )

    def step(self, time_ms: float, *, checkpoint: bool = False, interrupted: bool = False) -> None:
        self.state.profiling = self.plan.action(self.state.step) is not Action.REST
        self.state.checkpoint_saved = checkpoint
        self.captures.on_step_start()
        self.now_ns += round(time_ms * MS)
        if interrupted:
            self.captures.on_training_pause()
            self.captures.on_training_resume()
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
    assert run.folders() == ["slow-step-1043"]
    assert [run.plan.action(step) for step in range(42, 47)] == [
        Action.REST,
        Action.WARM_UP,
        Action.RECORD,
        Action.RECORD,
        Action.REST,
    ]
    (record,) = CAPTURES.read(tmp_path / "captures.rank0.jsonl")
    assert (record.trigger, record.step) == (CaptureTrigger.SLOW_STEPS, 1042)
    assert record.slowdown is not None
    assert record.slowdown.usual_ns == 10 * MS
    assert record.slowdown.limit_ns == 12.5 * MS
    assert record.slowdown.step_ns == (30 * MS,) * 3


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


def test_captures_are_bounded_by_the_disk(tmp_path: Path) -> None:
    run = Run(tmp_path, warmup=0, active=1, cooldown=0, sustained=1, max_bytes=1000)
    run.steps(40, 10)
    run.step(100)
    run.captures.window_ends(999)
    run.steps(9, 10)
    run.step(100)
    run.captures.window_ends(1)
    assert not run.captures.full
    run.steps(9, 10)
    run.step(100)
    (tmp_path / "profile-now").touch()
    run.step(2000)
    assert len(run.folders()) == 2
    assert run.captures.full


def test_a_request_waits_for_the_schedules_window(tmp_path: Path) -> None:
    run = Run(tmp_path, Schedule(skip_first=3, warmup=1, active=3), warmup=0, active=2)
    run.step(1)
    (tmp_path / "profile-now").touch()
    run.step(1000)
    assert run.folders() == []
    run.steps(8, 10)
    assert run.folders() == ["on-demand-1007"]


class Slow(Points):
    """Slow from one sample to another, and something happens at a third."""

    def __init__(self, size: int, slow: range, at: int = -1, do: Any = None) -> None:
        super().__init__(size)
        self.slow, self.at, self.do = slow, at, do

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.15 if index in self.slow else 0.002)
        if index == self.at:
            self.do()
        return super().__getitem__(index)


def test_a_training_that_turns_slow(tmp_path: Path) -> None:
    callback = PerfCallback(
        skip_first=5,
        warmup=1,
        active=3,
        dirpath=tmp_path / "perf",
        print_report=False,
        capture_slow_steps=CaptureOptions(min_excess=4.0, on_file=False, max_captures=1),
    )
    make_trainer(tmp_path, callback).fit(make_module(), DataLoader(Slow(70, range(50, 58)), 1))
    report = analyze(tmp_path / "perf")
    (capture,) = report.captures
    assert capture.folder == f"slow-step-{capture.step + 1}"
    assert capture.step == 52
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
    assert any("waiting for input" in sentence for sentence in capture.evidence)
    assert report.verdict.where.startswith("A step takes"), "the report is of the scheduled window"
    assert all("slow-step" not in source for source in report.sources)
    assert report.trust is not None
    assert [window.window.capture for window in report.trust.windows] == ["", capture.folder]
    assert analyze(tmp_path).sources == report.sources, "a capture is no run of its own"
    assert len(analyze(tmp_path / "perf" / capture.folder).ranks) == 1


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="this system has no SIGUSR2")
def test_a_training_that_is_asked(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    data = Slow(40, range(0), at=20, do=lambda: os.kill(os.getpid(), signal.SIGUSR2))
    callback = PerfCallback(
        skip_first=5,
        warmup=1,
        active=3,
        dirpath=tmp_path / "perf",
        print_report=False,
        capture_slow_steps=CaptureOptions(on_signal=True, max_captures=0),
    )
    make_trainer(tmp_path, callback).fit(make_module(), DataLoader(data, 1))
    (capture,) = analyze(tmp_path / "perf").captures
    assert (capture.folder, capture.trigger, capture.slowdown) == ("on-demand-21", CaptureTrigger.SIGNAL, None)
    assert signal.getsignal(signal.SIGUSR2) == before


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="this system has no SIGUSR2")
def test_the_signals_handler_is_restored_after_an_error(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    callback = PerfCallback(print_report=False, capture_slow_steps=CaptureOptions(on_signal=True))

    def fails(self: Any, batch: Any, batch_idx: int) -> None:
        assert signal.getsignal(signal.SIGUSR2) != before
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make_trainer(tmp_path, callback).fit(make_module(training_step=fails), loader(3))
    assert signal.getsignal(signal.SIGUSR2) == before


def test_a_touched_file_in_a_training(tmp_path: Path) -> None:
    data = Slow(30, range(0), at=10, do=(tmp_path / "perf" / "profile-now").touch)
    callback = PerfCallback(
        skip_first=2,
        warmup=1,
        active=2,
        dirpath=tmp_path / "perf",
        print_report=False,
        capture_slow_steps=CaptureOptions(max_captures=0),
    )
    # The file is looked for at the first step's end, then a second later: steps are long enough for one more look.
    make_trainer(tmp_path, callback).fit(make_module(), DataLoader(SlowLater(data), 1))
    (capture,) = analyze(tmp_path / "perf").captures
    assert capture.trigger is CaptureTrigger.FILE
    assert not (tmp_path / "perf" / "profile-now").exists()


class SlowLater(Points):
    def __init__(self, data: Slow) -> None:
        super().__init__(data.size)
        self.data = data

    def __getitem__(self, index: int) -> Any:
        if index == 12:
            time.sleep(1.1)
        return self.data[index]


def test_without_the_option_nothing_is_captured_or_watched(tmp_path: Path) -> None:
    (tmp_path / "perf").mkdir()
    callback = PerfCallback(dirpath=tmp_path / "perf", print_report=False)
    make_trainer(tmp_path, callback).fit(make_module(), loader(10))
    assert not list((tmp_path / "perf").glob("captures*"))
    assert analyze(tmp_path / "perf").captures == ()
