"""`Recording`: which steps are recorded, with which details, by which ranks, and at which cost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from statistics import median
from typing import Any

from lightning_perf.callbacks.recording.captures import CaptureOptions
from lightning_perf.callbacks.recording.schedule import Schedule
from lightning_perf.run_files.steps import StepSample

HISTORY = 50
"""Steps without the profiler that its steps are compared with."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The options that `PerfCallback`, `PerfLoop`, `PerfTrainerCallback` and ``lightning-perf run`` share.

    Each of them has these parameters in its own signature, with these defaults, and passes them on by `given`.
    `PerfCallback` describes them.

    Raises:
        TypeError: An option has the wrong type.
        ValueError: An option is out of its range.
    """

    skip_first: int | None = None
    wait: int | None = None
    warmup: int | None = None
    active: int = Schedule.active
    repeat: int = Schedule.repeat
    record_shapes: bool = True
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    capture_slow_steps: CaptureOptions | bool = False
    max_overhead: float | timedelta | None = None
    ranks: Collection[int] | None = None
    hang_after: float | None = None

    def __post_init__(self) -> None:
        _check_budget(self.max_overhead)
        if self.hang_after is not None and not 0 < self.hang_after < float("inf"):
            raise ValueError(f"hang_after={self.hang_after!r} must be a number of seconds above 0")
        _ = self.schedule, self.captures
        object.__setattr__(self, "ranks", _checked_ranks(self.ranks))

    @classmethod
    def given(cls, arguments: Mapping[str, Any]) -> Recording:
        """Take the options out of the arguments of a constructor, as `locals` returns them."""
        return cls(**{item.name: arguments[item.name] for item in fields(cls) if item.name in arguments})

    @property
    def open_fields(self) -> frozenset[str]:
        """The fields of the schedule that a short training may shorten, because the user left them open."""
        given = {"skip_first": self.skip_first, "wait": self.wait, "warmup": self.warmup}
        return frozenset(name for name, value in given.items() if value is None)

    @property
    def schedule(self) -> Schedule:
        """The schedule, with its defaults for open fields."""
        return Schedule(
            skip_first=Schedule.skip_first if self.skip_first is None else self.skip_first,
            wait=Schedule.wait if self.wait is None else self.wait,
            warmup=Schedule.warmup if self.warmup is None else self.warmup,
            active=self.active,
            repeat=self.repeat,
        )

    @property
    def captures(self) -> CaptureOptions | None:
        """When to record steps outside of the schedule; None for never."""
        given = self.capture_slow_steps
        if isinstance(given, bool):
            return CaptureOptions() if given else None
        if not isinstance(given, CaptureOptions):
            raise TypeError(f"capture_slow_steps must be True, False or a CaptureOptions, not {given!r}")
        return given


def _checked_ranks(ranks: Collection[int] | None) -> frozenset[int] | None:
    """Check the argument of ``PerfCallback(ranks=…)``."""
    if ranks is None:
        return None
    if isinstance(ranks, (str, bytes)) or not hasattr(ranks, "__iter__"):
        raise TypeError(f"ranks must be a list of numbers, e.g. ranks=[0, 1], not {ranks!r}")
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, int):
            raise TypeError(f"ranks contains {rank!r}, but a rank is an integer")
        if rank < 0:
            raise ValueError(f"ranks contains {rank}, but ranks count from 0")
    return frozenset(ranks)


def check_choice(name: str, value: object, known: Collection[object]) -> None:
    """Check an option that takes one of a few values."""
    if value not in known:
        raise ValueError(f"{name}={value!r} is unknown: give one of {', '.join(map(repr, known))}")


def _check_budget(limit: float | timedelta | None) -> None:
    if limit is None:
        return
    if isinstance(limit, timedelta):
        if limit < timedelta(0):
            raise ValueError(f"max_overhead={limit!r} is negative: give timedelta(seconds=30), or a part of the fit")
    elif isinstance(limit, bool) or not isinstance(limit, (int, float)):
        raise TypeError(f"max_overhead is a part of the fit's time (0.02) or a timedelta, not {limit!r}")
    elif not 0 <= limit <= 1:
        raise ValueError(f"max_overhead={limit} is no part of the fit's time: give 0 to 1, or a timedelta")


class OverheadBudget:
    """Counts the cost of the profiler, and decides whether another window may start.

    The cost is the time of its pauses and exports, plus the excess of profiled steps over the median of the last steps
    without it. The first window is always allowed: without one nothing is known. A further one is, if with the mean
    cost of a window so far the limit still holds.
    """

    def __init__(self, limit: float | timedelta, *, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._limit = limit
        self._now_ns = now_ns
        self._start_ns = now_ns()
        self._usual: deque[int] = deque(maxlen=HISTORY)
        self._windows = 0
        self.cost_ns = 0
        """The cost of the profiler so far."""
        self.refused = 0
        """Windows that were not allowed."""

    def allows(self) -> bool:
        """Whether a window may start now; a refusal is counted."""
        if not self._windows:
            return True
        expected_ns = self.cost_ns + self.cost_ns / self._windows
        if isinstance(self._limit, timedelta):
            limit_ns = self._limit.total_seconds() * 1e9
        else:
            limit_ns = self._limit * (self._now_ns() - self._start_ns)
        allowed = expected_ns <= limit_ns
        self.refused += not allowed
        return allowed

    def window_ends(self, cost_ns: int) -> None:
        """Count a window, and the time that training waited for it between steps."""
        self._windows += 1
        self.cost_ns += cost_ns

    def add(self, sample: StepSample) -> None:
        """Count a step to those without the profiler, or its excess to the cost."""
        if not sample.profiled:
            self._usual.append(sample.step_ns)
        elif self._usual:
            self.cost_ns += max(sample.step_ns - round(median(self._usual)), 0)
