"""How a training uses the cores: its thread, its process, its loader's workers, and other programs next to it."""

from __future__ import annotations

import mmap
import multiprocessing
import operator
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from msgspec import Struct, field

from lightning_perf.callbacks.background import BackgroundThread
from lightning_perf.callbacks.steps.fit_state import FitState
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.machine.processor import busy_s, process_counters
from lightning_perf.run_files.fit.memory_growth import WorkerGrowth
from lightning_perf.run_files.steps import WARMUP_STEPS

PROC = Path("/proc")
CONTROL_GROUP = Path("/sys/fs/cgroup")

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


def thread_use() -> Use | None:
    """Return the use by the calling thread, or None where nobody counts it."""
    return task_use(PROC / "self" / "task" / str(threading.get_native_id()))


def pressure_us(kind: str) -> int | None:
    """Return how long tasks of this container or machine have waited for ``io`` or ``memory``; None if unknown.

    Linux counts it as pressure stall information, the line ``some``: as a mean of the cores that are in use.
    """
    for path in (CONTROL_GROUP / f"{kind}.pressure", PROC / "pressure" / kind):
        with suppress(OSError, ValueError, IndexError):  # not Linux, or switched off
            return int(path.read_text(encoding="ascii").splitlines()[0].rpartition("total=")[2])
    return None


def read_bytes(pid: int) -> int | None:
    """Return the bytes that a process has fetched from a disk, without those in the page cache; None if unknown."""
    try:
        lines = (PROC / str(pid) / "io").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))
    except (OSError, ValueError, StopIteration):
        return None


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


class Reading(Struct, frozen=True):
    """All counters at one moment; None stands for one that the system does not have."""

    at_ns: int = field(default_factory=time.perf_counter_ns)
    thread: Use | None = field(default_factory=thread_use)
    process_ns: int = field(default_factory=time.process_time_ns)
    busy_s: float | None = field(default_factory=busy_s)
    children: dict[int, Use] = field(
        default_factory=lambda: {
            child.pid: use
            for child in multiprocessing.active_children()
            if child.pid is not None and (use := process_use(child.pid)) is not None
        }
    )


BURST = 200
BURST_EVERY_S = 0.02
"""Looks at the states of the workers in each stretch, and the mean time between two of them: four seconds in all. The
standard error of a share is then at most 0.035."""

LEAST_STATES = 32
"""Looks at the states of the workers from which the share of one is known."""

SLOW = 0.5
"""Share of the slowest worker's open batches that the others have at most in the mean, if only that one is slow.

With 4 looks per worker and 8 more, it holds by chance in at most 2 of 100 simulated loaders with equal workers and
exponential times of batches.
"""


_Counters: TypeAlias = tuple[int, dict[int, tuple[int, ...]], dict[str, int | None]]
"""The time, the use of cores and the bytes of each process, and the pressure by kind."""


class WorkerUse:
    """Adds up how the workers of the training's loader spend their time, in stretches without validation.

    Args:
        workers: Their number.
        iterators: Returns the iterators of the loader; empty if they are not known.
    """

    def __init__(self, workers: int, iterators: Callable[[], Sequence[Any]] = tuple) -> None:
        self._workers = workers
        self._iterators = iterators
        self._begun: list[_Counters] = []
        self._totals: dict[int, list[int]] = {}  # by worker
        self._stalls_us: Counter[str] = Counter()
        self._looks = self._queued = self._ahead = 0
        self._open: Counter[int] = Counter()
        self._states: dict[int, Counter[str]] = defaultdict(Counter)  # by worker
        self._looking: list[BackgroundThread] = []

    def look(self) -> None:
        """Count the batches ahead when a fetch starts: those that a worker has yet to make, and those in the queue.

        It reads private attributes of torch's iterator, as torch 2.1 to 2.15 have them.
        """
        found = [each for each in self._iterators() if hasattr(each, "_task_info")]
        with suppress(AttributeError, OSError, NotImplementedError):  # macOS does not count the entries of a queue
            for iterator in found if len(found) == 1 else ():
                tasks = tuple(iterator._task_info.values())
                self._queued += iterator._data_queue.qsize()
                self._ahead += len(tasks)
                self._open.update(task[0] for task in tasks if len(task) == 1)
                self._looks += 1
        if not self._begun:
            self._begin()

    def _begin(self) -> None:
        """Begin a stretch. Without iterators, the workers are the processes that were started last."""
        pids = [worker.pid for each in self._iterators() for worker in getattr(each, "_workers", ())]
        pids = pids or sorted(child.pid or 0 for child in multiprocessing.active_children())[-self._workers :]
        self._begun = [self._read(pids)]
        self._looking = [BackgroundThread(self._look_at_states(pids), "lightning_perf workers")]
        self._looking[0].start()

    @staticmethod
    def _read(pids: Iterable[int]) -> _Counters:
        uses: dict[int, tuple[int, ...]] = {
            pid: (*use, read_bytes(pid) or 0) for pid in pids if (use := process_use(pid)) is not None
        }
        return time.perf_counter_ns(), uses, {kind: pressure_us(kind) for kind in ("io", "memory")}

    def _look_at_states(self, pids: Sequence[int]) -> Generator[float, None, None]:
        """Look at the states of the workers for seconds, in a thread: when a step starts, they are not the usual."""
        for gap in Random(0).choices(range(2, 19), k=BURST):
            yield gap / 10 * BURST_EVERY_S
            for number, pid in enumerate(pids):
                with suppress(OSError, IndexError):
                    self._states[number][process_counters(pid)[0]] += 1

    def end(self) -> None:
        """End the stretch, as far as its workers still run."""
        for each in self._looking:
            each.stop()  # and wait: the program may fork next, and Python warns of that where there are threads
        begun, self._begun, self._looking = self._begun, [], []
        for begin_ns, before, stalled in begun:
            end_ns, after, stalls = self._read(before)
            for number, pid in enumerate(before):
                if pid in after:
                    used = (end_ns - begin_ns, *map(operator.sub, after[pid], before[pid]))
                    self._totals[number] = [*map(operator.add, self._totals.get(number, (0, 0, 0, 0)), used)]
            for kind, begin_us in stalled.items():
                self._stalls_us[kind] += (stalls[kind] or 0) - (begin_us or 0)

    def facts(self) -> dict[str, Any]:
        """Return the facts of `lightning_perf.run_files.fit.memory_growth.WorkerGrowth` about the time of a worker."""
        facts: dict[str, Any] = {}
        slow = None
        if self._looks >= 4 * self._workers + 8:
            slow = self._slow()
            left = max(0, self._open.total() - self._queued) / self._looks / self._workers
            facts |= {"slow": slow, "open_batches": round(left, 2)}
            facts["queued"] = round(self._queued / max(self._ahead, 1), 4)
        chosen = [total for number, total in self._totals.items() if slow in (None, number)]
        if chosen:
            elapsed_ns, *used = map(sum, zip(*chosen, strict=True))
            shares = [round(amount / elapsed_ns, 4) for amount in used]
            facts |= {"cpu": shares[0], "core_wait": shares[1], "read_bytes_per_s": round(1e9 * used[2] / elapsed_ns)}
        states = sum((counts for number, counts in self._states.items() if slow in (None, number)), Counter[str]())
        if states.total() >= LEAST_STATES:
            facts["disk_wait"] = round(states["D"] / states.total(), 4)
        if self._stalls_us["io"] > 0:
            facts["memory_stalls"] = round(min(1.0, self._stalls_us["memory"] / self._stalls_us["io"]), 4)
        return facts

    def _slow(self) -> int | None:
        """Return the number of the only worker that still makes batches when the others have made theirs."""
        if not self._open:
            return None
        (slowest, most), *others = self._open.most_common()
        is_only = sum(count for _, count in others) <= SLOW * most * (self._workers - 1)
        return slowest if is_only and self._workers > 1 else None


class CoreUse(FitObserver):
    """Measures the use of the cores from the end of the warm-up on, and the memory of a worker from its start on.

    It looks at the loader at ever greater distances: two hundred times in a million steps.
    """

    consequence = "the use of the cores is not known"

    def __init__(
        self,
        state: FitState,
        workers: int = 0,
        container: str = "",
        *,
        iterators: Callable[[], Sequence[Any]] = tuple,
        read: Callable[[], Reading] = Reading,
        memory: Callable[[int], Memory | None] = process_memory,
    ) -> None:
        self._state = state
        self._workers = workers
        self._read = read
        self._container = container
        self._memory = memory
        self._begun: Reading | None = None
        self._next = self._next_sample = 0
        self._distances = Random(0)  # a fixed distance could always meet the same worker
        self._worker = 0  # its process ID
        self._sizes: list[tuple[int, Memory]] = []  # by step
        self._use = WorkerUse(workers, iterators)

    def on_step_start(self) -> None:
        """Begin with the first step, and again after the warm-up. Look at a worker whenever steps have doubled."""
        step = self._state.step
        if step < self._next:
            return
        if step in (0, WARMUP_STEPS):
            self._begun = self._read()
        if step == 0 and self._begun is not None and self._workers:
            self._worker = max(self._begun.children, default=0)  # the loader of the training has started its last
        if step >= self._next_sample:
            self._next_sample = max(WARMUP_STEPS, 2 * step)
            self._use.end()
            if self._worker and (found := self._memory(self._worker)) is not None:
                self._sizes.append((step, found))
        self._next = self._next_sample
        if step >= WARMUP_STEPS and self._workers:
            self._use.look()
            self._next = min(self._next, step + self._distances.randint(1, 1 + step // 8))

    def on_training_pause(self) -> None:
        """End the stretch of the workers: in validation they have nothing to do."""
        self._use.end()

    def worker_growth(self) -> WorkerGrowth | None:
        """Return the memory of a worker process over time; None without one."""
        if len(self._sizes) < 2:
            return None
        (first_step, first), (last_step, last) = self._sizes[0], self._sizes[-1]
        _, resident, faulted = (max(0, then - before) for before, then in zip(first, last, strict=True))
        self._use.end()
        sizes = (first[0], last[0], resident, faulted)
        return WorkerGrowth(self._workers, first_step, last_step, *sizes, self._container, **self._use.facts())

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
