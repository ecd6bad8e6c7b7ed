"""How a training uses the cores: its thread, its process, its loader's workers, and other programs next to it."""

from __future__ import annotations

import mmap
import multiprocessing
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lightning_perf.callbacks.steps.fit_state import FitState, StepObserver
from lightning_perf.machine.processor import busy_s, process_counters
from lightning_perf.run_files.fit.memory_growth import WorkerGrowth
from lightning_perf.run_files.steps import WARMUP_STEPS

PROC = Path("/proc")

LEAST_S = 0.2
"""In a shorter time, the use by other programs stays unknown: the kernel counts it in hundredths of a second."""

Use = tuple[int, int]
"""Time on a core, and time ready to run without a core, in nanoseconds."""


def task_use(path: Path) -> Use | None:
    """Return the use by a task, or None where nobody counts it.

    Linux counts it for each thread (proc(5), ``schedstat``), also while a container's quota is used up.
    """
    try:
        on_core_ns, waited_ns, *_ = (path / "schedstat").read_text(encoding="ascii").split()
        return int(on_core_ns), int(waited_ns)
    except (OSError, ValueError):  # not Linux, a kernel without these statistics, or a task that has ended
        return None


def core_wait_ns() -> int | None:
    """Return the time for which the calling thread was ready to run and had no core; None if nobody counts it."""
    use = task_use(PROC / "self" / "task" / str(threading.get_native_id()))
    return use[1] if use is not None else None


def process_use(pid: int) -> Use | None:
    """Return the use by another process: the time of all its threads on a core, and the waits of its first thread."""
    try:
        tasks = list((PROC / str(pid) / "task").iterdir())
    except OSError:
        return None
    first = task_use(PROC / str(pid))
    used = [use[0] for task in tasks if (use := task_use(task)) is not None]
    return (sum(used), first[1]) if first is not None and used else None


Memory = tuple[int, int, int]
"""Memory that a process shares with no other one, all of its memory, and the memory of its page faults, in bytes."""


def process_memory(pid: int) -> Memory | None:
    """Return the memory of another process; None if unknown."""
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
        sizes = {line.partition(":")[0]: 1024 * int(line.split()[1]) for line in lines}
        faults = int(process_counters(pid)[7])
        return sizes["Private_Clean"] + sizes["Private_Dirty"], sizes["Rss"], faults * mmap.PAGESIZE
    except (OSError, ValueError, IndexError, KeyError):  # not Linux, or it has ended
        return None


@dataclass(frozen=True)
class Reading:
    """All counters at one moment; None stands for one that the system does not have."""

    at_ns: int = field(default_factory=time.perf_counter_ns)
    thread: Use | None = field(
        default_factory=lambda: task_use(PROC / "self" / "task" / str(threading.get_native_id()))
    )
    process_ns: int = field(default_factory=time.process_time_ns)
    busy_s: float | None = field(default_factory=busy_s)
    children: dict[int, Use] = field(
        default_factory=lambda: {
            child.pid: use
            for child in multiprocessing.active_children()
            if child.pid is not None and (use := process_use(child.pid)) is not None
        }
    )


class CoreUse(StepObserver):
    """Measures the use of the cores from the end of the warm-up on, and the memory of a worker from its start on."""

    def __init__(
        self,
        state: FitState,
        workers: int = 0,
        container: str = "",
        *,
        read: Callable[[], Reading] = Reading,
        memory: Callable[[int], Memory | None] = process_memory,
    ) -> None:
        self._state = state
        self._workers = workers
        self._read = read
        self._container = container
        self._memory = memory
        self._begun: Reading | None = None
        self._next = 0
        self._worker = 0  # its process ID
        self._sizes: list[tuple[int, Memory]] = []  # by step
        self._uses: list[tuple[int, Use]] = []

    def on_step_start(self) -> None:
        """Begin with the first step, and again after the warm-up. Look at a worker whenever steps have doubled."""
        step = self._state.step
        if step < self._next:
            return
        if step in (0, WARMUP_STEPS):
            self._begun = self._read()
        if step == 0 and self._begun is not None and self._workers:
            self._worker = max(self._begun.children, default=0)  # the loader of the training has started its last
        if self._worker and (found := self._memory(self._worker)) is not None:
            self._sizes.append((step, found))
            if step >= WARMUP_STEPS and (use := process_use(self._worker)) is not None:
                self._uses.append((time.perf_counter_ns(), use))
        self._next = max(WARMUP_STEPS, 2 * step)

    def worker_growth(self) -> WorkerGrowth | None:
        """Return the memory of a worker process over time; None without one."""
        if len(self._sizes) < 2:
            return None
        (first_step, first), (last_step, last) = self._sizes[0], self._sizes[-1]
        _, resident, faulted = (max(0, then - before) for before, then in zip(first, last, strict=True))
        shares: list[float | None] = [None, None]
        if len(self._uses) > 1:
            (begin_ns, begin), (end_ns, end) = self._uses[0], self._uses[-1]
            shares = [round(_share(begin, end, which, end_ns - begin_ns), 4) for which in (0, 1)]
        sizes = (first[0], last[0], resident, faulted)
        return WorkerGrowth(self._workers, first_step, last_step, *sizes, self._container, *shares)

    def facts(self) -> dict[str, float]:
        """Return the known facts of `lightning_perf.trace.description.Processor` about the use of cores so far."""
        begin, end = self._begun, self._read()
        if begin is None or end.at_ns <= begin.at_ns:
            return {}
        elapsed_ns = end.at_ns - begin.at_ns
        facts = {"process_cpu": (end.process_ns - begin.process_ns) / elapsed_ns}
        if begin.thread is not None and end.thread is not None:
            facts["thread_cpu"], facts["core_wait"] = (_share(begin.thread, end.thread, n, elapsed_ns) for n in (0, 1))
        uses = [
            tuple(_share(begin.children.get(pid, (0, 0)), use, n, elapsed_ns) for n in (0, 1))
            for pid, use in end.children.items()
        ]
        busy_ns = 1e9 * ((end.busy_s or 0.0) - (begin.busy_s or 0.0))
        if busy_ns > 0 and elapsed_ns >= LEAST_S * 1e9:  # some sandboxes count nothing
            own = facts["process_cpu"] + sum(use[0] for use in uses)
            facts["other_cpu"] = max(0.0, busy_ns / elapsed_ns - own)
        workers = sorted(uses, key=sum, reverse=True)[: self._workers]  # other children, e.g. of validation, idle
        if workers:
            facts["worker_cpu"], facts["worker_wait"] = (sum(use[n] for use in workers) / len(workers) for n in (0, 1))
        return {name: round(value, 4) for name, value in facts.items()}


def _share(begin: Use, end: Use, which: int, elapsed_ns: int) -> float:
    return max(0.0, (end[which] - begin[which]) / elapsed_ns)
