"""The worker process of a probe, seen from the process that starts it."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from lightning_perf.machine.environment import load_average
from lightning_perf.machine.processor import busy_s
from lightning_perf.probe.replay.messages import Begin, CompiledTimes, GraphTimes, Measured, Ready, Replayed, Task
from lightning_perf.workers.process import WorkerError, WorkerProcess

ENVIRONMENT = {
    # oneDNN keeps 1,024 compiled primitives (oneDNN Developer Guide, "Primitive Cache"). A training needs fewer. A
    # probe needs those of all settings: without room for them, it would compile each convolution in each round.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32768",
    # The state that glibc reaches in a long training (mallopt(3)). It returns freed blocks of over 32 MiB, and free
    # memory of over 64 MiB at the end of the heap. So large tensors cost page faults, as in the training. Without
    # fixed thresholds, the settings would change them for each other.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
"""Environment of the worker process, in which all settings have the same conditions."""

START_S = 120.0
"""Longest wait for the worker process to load torch."""

REPLAY_S = 10.0
"""Longest wait for a replay from a CUDA graph, which usually takes less than a second."""

GRACE_S = 30.0
"""Time that a worker process may take beyond its task's, before it is ended."""


class OthersWatch:
    """Counts the cores that programs other than this process and its worker process keep busy, from its creation on."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), busy_s(), time.process_time()

    def busy_cores(self, worker_s: float) -> float:
        """Return the cores that other programs have kept busy, on average.

        If the system does not count processor time, the load average without the training itself stands for it.
        """
        began, busy_before_s, own_before_s = self._start
        busy_after_s = busy_s()
        if busy_before_s is None or busy_after_s is None:
            return max(0.0, (load_average() or 0.0) - 1.0)
        own_s = time.process_time() - own_before_s + worker_s
        elapsed_s = time.perf_counter() - began
        return max(0.0, busy_after_s - busy_before_s - own_s) / elapsed_s


class ProbeWorker:
    """A process that loads torch from its creation on, while the caller reads and plans, and then measures a task.

    Its methods raise `WorkerError` if it has ended or takes too long.
    """

    def __init__(self) -> None:
        self._others = OthersWatch()
        self._has_ended = False
        self._process = WorkerProcess(
            "lightning_perf.probe.replay.worker:main", Begin(), path=sys.path, environment=ENVIRONMENT
        )

    def __enter__(self) -> ProbeWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process, which may hold gigabytes. Otherwise it ends with the ``with`` block."""
        if not self._has_ended:
            self._has_ended = True
            self._process.kill()  # it would take a second to end by itself

    def wait_until_ready(self) -> float:
        """Wait until torch is loaded, and return the cores that other programs kept busy meanwhile."""
        return self._others.busy_cores(self._process.receive(Ready, timeout_s=START_S).cpu_s)

    def measure(self, task: Task) -> Measured:
        """Return the times of a task."""
        self._process.send(task)
        return self._process.receive(Measured, timeout_s=task.seconds + GRACE_S)

    def replayed(self) -> GraphTimes | None:
        """Return the times of the last task's calls replayed from a CUDA graph; ``None`` if they cannot be."""
        with suppress(WorkerError):
            return self._process.receive(Replayed, timeout_s=REPLAY_S).times
        return None


COMPILE_S = 600.0
"""Longest wait for the compiler."""


def compile_calls(task: Task) -> CompiledTimes:
    """Compile the calls of a task in a worker process, and return their times."""
    target = "lightning_perf.probe.replay.call_graph:main"
    with WorkerProcess(target, task, path=sys.path, environment=ENVIRONMENT) as process:
        return process.receive(CompiledTimes, timeout_s=COMPILE_S)
