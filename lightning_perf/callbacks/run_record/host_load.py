"""How busy the machine was with other work while a run trained: processor time of other processes, and CPU quotas."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

LEAST_S = 1.0
"""Shorter trainings are not judged: the kernel counts in hundredths of a second."""

_PROC = Path("/proc")
_CONTROL_GROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class LoadSeen:
    """How busy the machine was during a training.

    Attributes:
        other_cpu_share: Share of the usable processors' time that other processes took, 0 to 1, or None.
        cpu_throttled_share: Share of the time in which a CPU quota held back the container, 0 to 1, or None.
    """

    other_cpu_share: float | None = None
    cpu_throttled_share: float | None = None


@dataclass(frozen=True)
class _Sample:
    """Counters, in seconds; None where the machine does not have them."""

    at_s: float
    busy_s: float | None
    own_s: float | None
    throttled_s: float | None


class HostLoad:
    """Measures the load of other processes from its making on.

    Only Linux has the counters: ``/proc/stat`` has the busy time of each processor, including that of other virtual
    machines, and ``cpu.stat`` that of the control group. Reading them takes milliseconds.
    """

    def __init__(self, *, siblings: bool = False, proc: Path = _PROC, control_group: Path = _CONTROL_GROUP) -> None:
        self._family = os.getppid() if siblings else os.getpid()
        self._proc = proc
        self._control_group = control_group
        self._start = self._sample()

    def seen(self) -> LoadSeen:
        """Return the load since the start."""
        start, end = self._start, self._sample()
        elapsed_s = end.at_s - start.at_s
        if elapsed_s < LEAST_S:
            return LoadSeen()
        other = throttled = None
        if None not in (start.busy_s, end.busy_s, start.own_s, end.own_s):
            busy_s = (end.busy_s or 0.0) - (start.busy_s or 0.0)
            own_s = (end.own_s or 0.0) - (start.own_s or 0.0)
            if busy_s > 0:  # some sandboxes count nothing
                other = _share((busy_s - own_s) / (elapsed_s * len(_usable_cpus())))
        if start.throttled_s is not None and end.throttled_s is not None:
            throttled = _share((end.throttled_s - start.throttled_s) / elapsed_s)
        return LoadSeen(other, throttled)

    def _sample(self) -> _Sample:
        busy_s, own_s = _busy_s(self._proc / "stat"), _own_s(self._proc, self._family)
        return _Sample(time.monotonic(), busy_s, own_s, _throttled_s(self._control_group / "cpu.stat"))


def _share(value: float) -> float:
    return round(min(1.0, max(0.0, value)), 4)


def _usable_cpus() -> set[int]:
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # macOS
        return set(range(os.cpu_count() or 1))


def _busy_s(stat: Path) -> float | None:
    """Return the time that the usable processors worked, for any process."""
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return None
    names = {f"cpu{number}" for number in _usable_cpus()}
    rows = [line.split() for line in lines if line.startswith("cpu")]
    counts = [list(map(int, row[1:9])) for row in rows if row[0] in names]
    if len(counts) < len(names):
        return None
    # user nice system idle iowait irq softirq steal: proc_stat(5)
    return sum(sum(count) - count[3] - count[4] for count in counts) / _ticks_per_second()


def _own_s(proc: Path, family: int) -> float | None:
    """Processor time of the run's processes, those that have ended included once their parent took note."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    try:
        pids = [int(name) for name in os.listdir(proc) if name.isdigit()]  # noqa: PTH208
    except OSError:
        return None
    for pid in pids:
        try:
            text = (proc / str(pid) / "stat").read_text(errors="replace")
        except OSError:
            continue  # it has ended
        # pid (name) state ppid …, where the name may hold spaces and brackets: proc_pid_stat(5)
        fields = text.rpartition(")")[2].split()
        parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    own = {family}
    while more := {pid for pid, parent in parents.items() if parent in own and pid not in own}:
        own |= more
    return sum(ticks.get(pid, 0) for pid in own) / _ticks_per_second()


def _throttled_s(stat: Path) -> float | None:
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return None
    counts = dict(line.split() for line in lines if len(line.split()) == 2)
    return int(counts["throttled_usec"]) / 1e6 if "throttled_usec" in counts else None


def _ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK")
