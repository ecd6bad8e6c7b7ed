from __future__ import annotations

import functools
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.utils.data import DataLoader, get_worker_info

from lightning_perf import PerfLoop
from lightning_perf.callbacks.steps import core_use
from lightning_perf.callbacks.steps.core_use import (
    CoreUse,
    Reading,
    WorkerUse,
    process_use,
    task_use,
)
from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.findings.worker_time import explain_workers
from lightning_perf.run_files.fit.memory_growth import read_growth
from lightning_perf.run_files.steps import WARMUP_STEPS
from tests.callbacks.training import Points

S = 1_000_000_000


def test_the_use_is_that_since_the_warm_up() -> None:
    state = FitState()
    moments = [
        Reading(0, (0, 0), 0, 0.0, {}),
        Reading(5 * S, (0, 4 * S), 9 * S, 7.0, {7: (5, 5), 8: (0, 0), 9: (0, 0)}),
        # In 10 s: two busy workers, one of which waits for a core, and an idle process of validation.
        Reading(15 * S, (3 * S, 6 * S), 24 * S, 37.0, {7: (2 * S + 5, 5), 8: (4 * S, S), 9: (0, 0)}),
    ]
    use = CoreUse(state, workers=2, read=lambda: moments.pop(0))
    for step in range(WARMUP_STEPS + 10):
        state.step = step
        use.on_step_start()
    assert use.facts() == pytest.approx(
        {
            "core_wait": 0.2,
            "thread_cpu": 0.3,
            "process_cpu": 1.5,
            "other_cpu": 3.0 - 1.5 - 0.6,
            "worker_cpu": 0.3,
            "worker_wait": 0.05,
        }
    )


def test_a_worker_of_the_training_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    state = FitState()
    memory = iter([(10, 100, 7), (20, 101, 9), (40, 102, 40), (70, 103, 77)])
    asked: list[int] = []

    def sizes(pid: int) -> tuple[int, int, int]:
        asked.append(pid)
        return next(memory)

    monkeypatch.setattr(core_use, "process_use", lambda _: (len(asked) * S, 0))
    children = {5: (0, 0), 9: (0, 0)}  # process 5 is of validation, whose loader started first
    reading = Reading(0, None, 0, None, children)
    workers = SimpleNamespace(_workers=[SimpleNamespace(pid=9)])
    use = CoreUse(state, 2, "x", iterators=lambda: (workers,), read=lambda: reading, memory=sizes)
    for step in range(25):
        state.step = step
        use.on_step_start()
    growth = use.worker_growth()
    assert asked == [9] * 4
    assert growth is not None
    assert (growth.first_step, growth.last_step, growth.first_bytes, growth.last_bytes) == (0, 20, 10, 70)
    assert (growth.resident_bytes, growth.faulted_bytes, growth.copied_bytes) == (3, 70, 57)
    assert (growth.workers, growth.container) == (2, "x")
    assert growth.cpu is not None


@pytest.mark.parametrize("slow", [None, 2])
def test_the_time_of_workers_adds_up_without_validation(slow: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    # The workers 0 to 3 compute for 10, 20, 30 and 40 % of the time, and then wait for a core for a tenth of that.
    counters = {
        10 + n: (lambda n=n: (round(0.1 * n * now_s[0] * S), round(0.01 * n * now_s[0] * S))) for n in range(1, 5)
    }
    monkeypatch.setattr(core_use, "process_use", lambda pid: counters[pid]())
    monkeypatch.setattr(core_use, "read_bytes", lambda _: round(5000 * now_s[0]))
    monkeypatch.setattr(core_use, "pressure_us", lambda kind: round((2e5 if kind == "io" else 5e4) * now_s[0]))
    monkeypatch.setattr(time, "perf_counter_ns", lambda: round(now_s[0] * S))
    # Each worker has 2 batches ahead. Without a slow one, it has yet to make both.
    tasks = {n: (n % 4,) if slow in (None, n % 4) else (n % 4, "data") for n in range(8)}
    iterator = SimpleNamespace(
        _workers=[SimpleNamespace(pid=pid) for pid in counters],
        _task_info=tasks,
        _data_queue=SimpleNamespace(qsize=lambda: 1),
    )
    use = WorkerUse(4, lambda: (iterator,))
    for begin_s, end_s in ((0, 3), (100, 107)):  # a validation of 97 s in between
        now_s[0] = begin_s
        for _ in range(12):
            use.look()
        now_s[0] = end_s
        use.end()
    share = 0.25 if slow is None else 0.3
    expected = {"cpu": share, "core_wait": share / 10, "read_bytes_per_s": 5000, "memory_stalls": 0.25}
    left = 1.75 if slow is None else 0.25
    assert use.facts() == expected | {"slow": slow, "open_batches": left, "queued": 0.125}


def sleep(slow: int | None, _: int) -> None:
    """Sleep for 20 ms, in one of two workers or in both."""
    info = get_worker_info()
    if info is not None and slow in (None, info.id):
        time.sleep(0.02)


@pytest.mark.parametrize("slow", [None, 1])
def test_workers_that_sleep_neither_compute_nor_read(slow: int | None, tmp_path: Path) -> None:
    if task_use(core_use.PROC / "self") is None:
        pytest.skip("the system does not count it")
    dataset = Points(160, functools.partial(sleep, slow))
    with PerfLoop(dirpath=tmp_path / "perf", report="none", total_steps=80) as perf:
        for _ in perf.steps(DataLoader(dataset, 2, num_workers=2), accumulate=1):
            pass
    record = read_growth(tmp_path / "perf")
    assert record is not None
    assert record.worker is not None
    cause = explain_workers(record.worker, 0.9)
    assert (record.worker.slow, cause and cause.kind) == (slow, "other" if slow is None else "slow worker")
    assert (record.worker.disk_wait or 0) < 0.2


def test_what_the_system_does_not_count_is_left_out() -> None:
    moments = [Reading(0, None, 0, None, {}), Reading(S, None, S // 2, None, {})]
    use = CoreUse(FitState(), workers=2, read=lambda: moments.pop(0))
    use.on_step_start()
    assert use.facts() == {"process_cpu": 0.5}


def test_the_statistics_of_a_task_are_read(tmp_path: Path) -> None:
    assert task_use(tmp_path) is None
    for content, use in (("12 345 6\n", (12, 345)), ("12\n", None), ("a b c\n", None)):
        (tmp_path / "schedstat").write_text(content)
        assert task_use(tmp_path) == use


def test_a_sleeping_process_uses_no_core_and_a_computing_one_does() -> None:
    if task_use(core_use.PROC / "self" / "task" / str(threading.get_native_id())) is None:
        pytest.skip("the system does not count it")
    wait, compute = ("import time; time.sleep(60)", "while True: pass")
    children = [
        subprocess.Popen([sys.executable, "-c", f"print(flush=True); {work}"], stdout=subprocess.PIPE)
        for work in (wait, f"exec('{compute}')")
    ]
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.read(1)  # it has started
        before = [process_use(child.pid) or (0, 0) for child in children]
        time.sleep(0.3)
        after = [process_use(child.pid) or (0, 0) for child in children]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    asleep, computes = (sum(then) - sum(first) for first, then in zip(before, after, strict=True))
    assert asleep < computes  # on a core or without one: the machine may be busy
