from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from lightning_perf.analysis.steps.step_times import WARMUP_STEPS
from lightning_perf.callbacks.steps import core_waits
from lightning_perf.callbacks.steps.core_waits import CoreWaits, thread_wait_ns
from lightning_perf.callbacks.steps.fit_state import FitState


def test_the_share_is_that_since_the_warm_up() -> None:
    state, now, waited = FitState(), [0], [0]
    waits = CoreWaits(state, waited_ns=lambda: waited[0], clock_ns=lambda: now[0])
    assert waits.share() is None
    for step in range(WARMUP_STEPS + 10):
        state.step = step
        waits.on_step_start()
        now[0] += 100
        waited[0] += 90 if step < WARMUP_STEPS else 25
    assert waits.share() == pytest.approx(0.25)


def test_a_recording_within_the_warm_up_has_the_share_since_the_first_step() -> None:
    now, waited = [0], [0]
    waits = CoreWaits(FitState(), waited_ns=lambda: waited[0], clock_ns=lambda: now[0])
    waits.on_step_start()
    now[0], waited[0] = 200, 100
    assert waits.share() == pytest.approx(0.5)


def test_a_system_that_does_not_count() -> None:
    waits = CoreWaits(FitState(), waited_ns=lambda: None)
    waits.on_step_start()
    assert waits.share() is None


def test_the_statistics_of_this_thread_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / str(threading.get_native_id())
    folder.mkdir()
    monkeypatch.setattr(core_waits, "TASKS", tmp_path)
    assert thread_wait_ns() is None
    for content, waited in (("12 345 6\n", 345), ("12\n", None), ("a b c\n", None)):
        (folder / "schedstat").write_text(content)
        assert thread_wait_ns() == waited


def test_waits_of_linux_only_grow() -> None:
    before = thread_wait_ns()
    if before is None:
        pytest.skip("the system does not count them")
    time.sleep(0.01)
    after = thread_wait_ns()
    assert after is not None
    assert after >= before
