"""The load of other processes during a training, measured from the kernel's counters."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lightning_perf.callbacks.run_record import fit_record
from lightning_perf.callbacks.run_record.fit_record import HostLoad

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

TICKS = 100
"""Ticks of the kernel per second in these files."""


class Kernel:
    """A machine with two processors, in files as the kernel shows it; times are in seconds."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proc, self.group, self.now = folder / "proc", folder / "group", 0.0
        self.group.mkdir()
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        monkeypatch.setattr(os, "sysconf", lambda _: TICKS)
        monkeypatch.setattr(fit_record, "time", self)

    def monotonic(self) -> float:
        return self.now

    def show(self, *, at: float, busy: float, processes: dict[int, tuple[int, float]]) -> None:
        """Show the time of both processors, and the parent and the time of each process."""
        self.now = at
        half = int(busy * TICKS / 2)
        self.proc.mkdir(exist_ok=True)
        rows = [f"cpu{number} {half} 0 0 {int(at * TICKS)} 7 0 0 0 0 0" for number in (0, 1)]
        (self.proc / "stat").write_text("\n".join(["cpu  0 0 0 0 0 0 0 0 0 0", *rows, "intr 1"]) + "\n")
        for number, (parent, seconds) in processes.items():
            fields = ["S", parent, *[0] * 9, int(seconds * TICKS), 0, 0, 0]
            (self.proc / str(number)).mkdir(exist_ok=True)
            (self.proc / str(number) / "stat").write_text(f"{number} (a (b) c) {' '.join(map(str, fields))}\n")

    def load(self) -> HostLoad:
        return HostLoad(proc=self.proc, control_group=self.group)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(tmp_path, monkeypatch)


def test_the_runs_own_processes_are_not_others(kernel: Kernel) -> None:
    own, worker, other = os.getpid(), 10_000_001, 10_000_002
    kernel.show(at=0, busy=100, processes={own: (1, 5), worker: (own, 1), other: (1, 50)})
    load = kernel.load()
    # In 10 s two processors worked 14 s: 8 s for the run, 4 s for its worker, 2 s for another process.
    kernel.show(at=10, busy=114, processes={own: (1, 13), worker: (own, 5), other: (1, 52)})
    assert load.shares()[0] == pytest.approx(2 / 20)


def test_a_cpu_quota_is_read_from_the_control_group_and_a_short_training_is_not_judged(kernel: Kernel) -> None:
    stat, own = kernel.group / "cpu.stat", {os.getpid(): (1, 0.0)}
    kernel.show(at=0, busy=0, processes=own)
    stat.write_text("usage_usec 1\nnr_periods 5\nthrottled_usec 1000000\n")
    load = kernel.load()
    stat.write_text("usage_usec 9\nnr_periods 9\nthrottled_usec 3500000\n")
    kernel.show(at=0.9, busy=1.8, processes=own)
    assert load.shares() == (None, None)
    kernel.show(at=10, busy=0, processes=own)
    assert load.shares()[1] == 0.25


def test_a_machine_without_counters_says_nothing(kernel: Kernel) -> None:
    load = kernel.load()
    kernel.now = 10.0
    assert load.shares() == (None, None)


def test_this_machines_counters_can_be_read() -> None:
    assert HostLoad().shares() == (None, None)  # too short to judge, and nothing failed
