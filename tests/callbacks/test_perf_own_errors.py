"""`PerfCallback` when its own parts fail: one warning, and the training continues."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path
from typing import Any

import pytest
from torch.profiler import profile

from lightning_perf import CaptureOptions
from lightning_perf.callbacks.fit import Fit
from lightning_perf.callbacks.recording import profiler as profiler_module
from lightning_perf.callbacks.recording.captures import Captures, FileRequests, OverheadBudget
from lightning_perf.callbacks.recording.profiler import WindowProfiler, recorder_is_taken
from lightning_perf.callbacks.recording.schedule import WindowPlan
from lightning_perf.callbacks.run_record.run_folder import RankFiles
from lightning_perf.callbacks.steps.core_use import CoreUse
from lightning_perf.callbacks.steps.step_log import StepLog
from lightning_perf.callbacks.steps.step_timer import StepTimer
from lightning_perf.callbacks.steps.step_tracker import StepTracker
from lightning_perf.run_files.steps import STEPS
from tests.callbacks.perf_training import assert_untapped, three
from tests.callbacks.training import failing, loader, make_module, make_trainer, samples, step_numbers

FAULTS: dict[Any, tuple[str, ...]] = {
    Fit: ("__init__",),
    StepTracker: (
        "on_action_start", "on_action_end", "on_batch_start", "on_batch_end", "on_before_backward", "on_after_backward",
        "on_before_optimizer_step", "on_optimizer_step_start", "on_optimizer_step_end", "finish",
    ),
    StepTimer: (
        "add_batch", "on_step_start", "on_step_end", "on_phase_start", "on_phase_end", "on_training_pause", "finish",
    ),
    StepLog: ("on_sample", "on_window", "on_step_end", "write"),
    WindowProfiler: ("on_step_start", "on_step_end", "on_phase_start", "on_phase_end", "on_training_pause"),
    profiler_module: ("export_trace",),
    profile: ("prepare_trace", "start_trace", "stop_trace", "export_chrome_trace"),
}  # fmt: skip
OPTIONAL_FAULTS: dict[Any, tuple[str, ...]] = {
    WindowPlan: ("action", "folder_for"),
    Captures: ("on_step_start", "on_step_end", "on_training_pause", "open"),
    FileRequests: ("look",),
    OverheadBudget: ("allows", "on_sample", "on_window"),
    RankFiles: ("wait",),
}
OPTIONS = {"capture_slow_steps": CaptureOptions(on_signal=True), "max_overhead": 0.5}


@pytest.mark.parametrize(
    ("owner", "method", "options"),
    [
        (owner, method, options)
        for faults, options in ((FAULTS, {}), (OPTIONAL_FAULTS, OPTIONS))
        for owner, methods in faults.items()
        for method in methods
    ],
    ids=lambda value: getattr(value, "__name__", value if isinstance(value, str) else "with options"),
)
def test_a_fault_in_profiling_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, options: dict[str, Any]
) -> None:
    handler = signal.getsignal(signal.SIGUSR2) if hasattr(signal, "SIGUSR2") else None
    original = getattr(owner, method)

    def broken(*args: Any, **kwargs: Any) -> None:
        if method in ("start_trace", "stop_trace"):  # else the recorder, one a process, would be left half-way
            original(*args, **kwargs)
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(owner, method, broken)
    trainer = make_trainer(tmp_path, three(warmup=1, **options), callbacks=[])
    with pytest.warns(RuntimeWarning, match="PerfCallback.*a fault of ours") as caught:
        trainer.fit(make_module(), loader(7))
    assert len([w for w in caught if "PerfCallback" in str(w.message)]) == 1
    assert trainer.global_step == 7
    assert trainer.state.finished
    assert_untapped(trainer)
    if handler is not None:
        assert signal.getsignal(signal.SIGUSR2) == handler
    assert not recorder_is_taken()


@pytest.mark.parametrize(
    ("owner", "method", "numbers", "timed"),
    [
        (StepTimer, "on_step_end", [[1, 2, 3]], 0),
        (CoreUse, "on_step_start", [[1, 2, 3]], 7),
        (WindowProfiler, "on_phase_start", [], 7),
        (StepTracker, "on_batch_end", [], 0),  # without it, nobody hears of a step
    ],
)
def test_a_part_that_fails_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, numbers: list[list[int]], timed: int
) -> None:
    monkeypatch.setattr(owner, method, failing(RuntimeError("a fault of ours")))
    trainer = make_trainer(tmp_path, three())
    with pytest.warns(RuntimeWarning, match=f"{owner.consequence}, training continues .*a fault of ours"):
        trainer.fit(make_module(), loader(7))
    assert step_numbers(tmp_path) == numbers
    assert [len(STEPS.read(path)) for path in tmp_path.rglob("steps.rank0.jsonl")] == ([timed] if timed else [])
    assert not recorder_is_taken()


def test_a_fault_between_steps_keeps_what_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, steps = StepTimer.on_step_start, itertools.count()

    def breaks_later(self: StepTimer) -> None:
        if next(steps) == 5:
            raise RuntimeError("a fault of ours")
        original(self)

    monkeypatch.setattr(StepTimer, "on_step_start", breaks_later)
    with pytest.warns(RuntimeWarning, match="a fault of ours"):
        make_trainer(tmp_path, three()).fit(make_module(), loader(8))
    assert step_numbers(tmp_path) == [[1, 2, 3]]
    assert [row["step"] for row in samples(tmp_path)] == [0, 1, 2, 3, 4]


def test_an_export_that_fails_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(self: Any, path: str) -> None:
        Path(path).write_bytes(b"\x1f\x8b half")
        raise OSError("disk full")

    monkeypatch.setattr(profile, "export_chrome_trace", half)
    with pytest.warns(RuntimeWarning, match="disk full"):
        make_trainer(tmp_path, three()).fit(make_module(), loader(6))
    assert not list(tmp_path.rglob("*.json.gz"))
    assert len(samples(tmp_path)) == 6
