"""The load of other processes during a training, measured from the kernel's counters."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightning_perf.callbacks.run_record import host_load
from lightning_perf.callbacks.run_record.host_load import HostLoad

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_work_of_this_process_is_its_own_and_to_another_it_is_foreign() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as idle:
        foreign = HostLoad()
        foreign._family = idle.pid
        foreign._start = host_load._sample(idle.pid)
        own = HostLoad()
        before = time.monotonic()
        spin(1.2)
        elapsed = time.monotonic() - before
        to_me, to_idle = own.seen().other_cpu_share, foreign.seen().other_cpu_share
        idle.communicate(b"\n")
    if to_me is None or to_idle is None:
        pytest.skip("this kernel does not count the time of its processors")
    mine = 1.2 / elapsed / len(host_load._usable_cpus())
    # What others on this machine do meanwhile is in both figures.
    assert to_idle - to_me == pytest.approx(min(mine, 1 - to_me), abs=0.1)


def test_work_of_a_child_is_the_runs_own() -> None:
    before = host_load._own_s(host_load.os.getpid())
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 1: pass"], check=True)
    after = host_load._own_s(host_load.os.getpid())
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(1.05, abs=0.3)


def test_a_cpu_quota_is_read_from_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "cpu.stat"
    monkeypatch.setattr(host_load, "_CGROUP_STAT", stat)
    monkeypatch.setattr(host_load.time, "monotonic", iter([10.0, 20.0]).__next__)
    stat.write_text("usage_usec 1\nnr_periods 5\nthrottled_usec 1000000\n")
    load = HostLoad()
    stat.write_text("usage_usec 9\nnr_periods 9\nthrottled_usec 3500000\n")
    assert load.seen().cpu_throttled_share == 0.25


def test_a_machine_without_counters_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_load, "_STAT", tmp_path / "none")
    monkeypatch.setattr(host_load, "_CGROUP_STAT", tmp_path / "none")
    monkeypatch.setattr(host_load, "LEAST_S", 0.0)
    assert HostLoad().seen() == host_load.LoadSeen(None, None)
