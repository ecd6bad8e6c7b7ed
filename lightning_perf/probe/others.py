"""The cores that other programs keep busy while the worker process of a probe loads torch."""

from __future__ import annotations

import time

from lightning_perf.machine.processor import busy_s, load_average

__all__ = ["OthersWatch"]


class OthersWatch:
    """Counts the cores that programs other than this process and its worker process keep busy, from its creation on."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), busy_s(), time.process_time()

    def busy_cores(self, worker_s: float) -> float:
        """Return the cores that other programs have kept busy, on average.

        Args:
            worker_s: Processor time of the worker process.

        Returns:
            The number. If the system does not count processor time, it is the load average of the last minute without
            the training itself. It is 0 if the system has no load average.
        """
        began, busy_before_s, own_before_s = self._start
        busy_after_s = busy_s()
        if busy_before_s is None or busy_after_s is None:
            return max(0.0, (load_average() or 0.0) - 1.0)
        own_s = time.process_time() - own_before_s + worker_s
        elapsed_s = time.perf_counter() - began
        return max(0.0, busy_after_s - busy_before_s - own_s) / elapsed_s
