"""How busy the machine was with other work while a run trained: processor time of other processes, and CPU quotas."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from lightning_perf.machine.processor import busy_s, process_counters

LEAST_S = 1.0
"""Shorter trainings are not judged: the kernel counts in hundredths of a second."""

_PROC = Path("/proc")
_CONTROL_GROUP = Path("/sys/fs/cgroup")


class HostLoad:
    """Measures the load of other processes from its making on.

    Only Linux has the counters: ``/proc/stat`` has the busy time of each processor, including that of other virtual
    machines, and ``cpu.stat`` that of the control group. Reading them takes milliseconds.
    """

    def __init__(self, *, siblings: bool = False, proc: Path = _PROC, control_group: Path = _CONTROL_GROUP) -> None:
        self._family = os.getppid() if siblings else os.getpid()
        self._proc = proc
        self._control_group = control_group
        self._began_s = time.monotonic()
        self._start = self._read()

    def shares(self) -> tuple[float | None, float | None]:
        """Return how busy the machine was with other work since the start, 0 to 1.

        Returns:
            The share of the usable processors' time that other processes took, and the share of the time in which a CPU
            quota held back the container. An unknown share stays None.
        """
        elapsed_s = time.monotonic() - self._began_s
        if elapsed_s < LEAST_S:
            return None, None
        all_s, own_s, throttled_s = (
            end - start if start is not None and end is not None else None
            for start, end in zip(self._start, self._read(), strict=True)
        )
        other = None
        if all_s is not None and own_s is not None and all_s > 0:  # some sandboxes count nothing
            other = _share((all_s - own_s) / (elapsed_s * len(os.sched_getaffinity(0))))
        return other, _share(throttled_s / elapsed_s) if throttled_s is not None else None

    def _read(self) -> tuple[float | None, float | None, float | None]:
        """Return the seconds of all processes, of the run's, and of the quota; None where nobody counts them."""
        all_s, own_s = busy_s(self._proc / "stat", stolen=True), _own_s(self._proc, self._family)
        return all_s, own_s, _throttled_s(self._control_group / "cpu.stat")


def _share(value: float) -> float:
    return round(min(1.0, max(0.0, value)), 4)


def _own_s(proc: Path, family: int) -> float | None:
    """Processor time of the run's processes, those that have ended included once their parent took note."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    try:
        pids = [int(name) for name in os.listdir(proc) if name.isdigit()]  # noqa: PTH208
    except OSError:
        return None
    for pid in pids:
        with suppress(OSError):  # it has ended
            counters = process_counters(pid, proc)
            parents[pid], ticks[pid] = int(counters[1]), sum(map(int, counters[11:15]))
    own = {family}
    while more := {pid for pid, parent in parents.items() if parent in own and pid not in own}:
        own |= more
    return sum(ticks.get(pid, 0) for pid in own) / os.sysconf("SC_CLK_TCK")


def _throttled_s(stat: Path) -> float | None:
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return None
    counts = dict(line.split() for line in lines if len(line.split()) == 2)
    return int(counts["throttled_usec"]) / 1e6 if "throttled_usec" in counts else None
