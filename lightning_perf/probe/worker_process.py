"""The worker process of a probe, seen from the process that starts it."""

from __future__ import annotations

import sys
from types import TracebackType

from lightning_perf.probe.others import OthersWatch
from lightning_perf.probe.replay.messages import Begin, Measured, Ready, Task
from lightning_perf.workers.process import WorkerProcess

__all__ = ["ProbeWorker"]

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

GRACE_S = 30.0
"""Time that a worker process may take beyond its task's, before it is ended."""


class ProbeWorker:
    """A process that loads torch from its creation on, while the caller reads and plans, and then measures a task.

    Raises:
        WorkerError: The process cannot be started.
    """

    def __init__(self) -> None:
        self._others = OthersWatch()
        self._process = WorkerProcess(
            "lightning_perf.probe.replay.worker:main", Begin(), path=sys.path, environment=ENVIRONMENT
        )

    def __enter__(self) -> ProbeWorker:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()  # it would take a second to end by itself

    def wait_until_ready(self) -> float:
        """Wait until torch is loaded, and return the cores that other programs kept busy meanwhile.

        Raises:
            WorkerError: The process ended, or takes too long.
        """
        return self._others.busy_cores(self._process.receive(Ready, timeout_s=START_S).cpu_s)

    def measure(self, task: Task) -> Measured:
        """Return the times of a task.

        Raises:
            WorkerError: The process ended, or takes too long.
        """
        self._process.send(task)
        return self._process.receive(Measured, timeout_s=task.seconds + GRACE_S)
