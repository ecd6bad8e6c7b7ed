"""How many worker processes a data loader needs, and how many the cores allow: the one model for all advice on them."""

from __future__ import annotations

import math
from dataclasses import dataclass

MOST_WORKERS = 16
"""Workers that are advised at most."""

SPARE = 0.25
"""Cores by which worker processes and training may exceed those of the machine before they compete."""


def affordable_workers(cores: float, busy: float) -> int:
    """Return how many workers fit on some cores, if each computes for a share of the time.

    Example:
        >>> affordable_workers(4, 1.0), affordable_workers(4, 0.1), affordable_workers(4, 0.0) > 1000
        (4, 40, True)
    """
    return max(1, math.floor(cores / max(busy, 1e-4) + 1e-9))


@dataclass(frozen=True)
class LoadingCost:
    """The cost of loading the batches of one step, and the rest of the step.

    Attributes:
        loading_ns: Time of one worker process to make and send them.
        busy: Share of this time in which the worker computes, 0 to 1. The rest is waiting, e.g. for a disk.
        rest_ns: Time of the step without waits for data.
        cores: Cores that the process may use; None if unknown.
        training_cores: Cores that the training itself computes on.
    """

    loading_ns: float
    busy: float
    rest_ns: float
    cores: int | None = None
    training_cores: int = 0

    @property
    def needed(self) -> int:
        """Workers that keep up with the rest of the step.

        Example:
            >>> LoadingCost(100e6, 1.0, 10e6).needed, LoadingCost(5e6, 1.0, 10e6).needed
            (10, 1)
        """
        return max(1, math.ceil(self.loading_ns / self.rest_ns - 1e-9)) if self.rest_ns > 0 else MOST_WORKERS

    @property
    def advised(self) -> int:
        """Workers to advise: as many as keep up, if the cores suffice and leave one to the training thread.

        Example:
            >>> LoadingCost(100e6, 1.0, 10e6, cores=4).advised, LoadingCost(100e6, 0.02, 10e6, cores=4).advised
            (3, 10)
        """
        most = affordable_workers(max(self.cores - 1, 1), self.busy) if self.cores else MOST_WORKERS
        return min(self.needed, most, MOST_WORKERS)

    def compete(self, workers: int) -> bool:
        """Return whether so many workers take cores that the training computes on."""
        if not self.cores or not self.training_cores:
            return False
        return min(self.training_cores, self.cores) + workers * self.busy > self.cores + SPARE
