"""`Recording`: which steps are recorded, with which details, by which ranks, and at which cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from lightning_perf.callbacks.recording.schedule import Schedule, check_number

LEAST_HISTORY = 20
"""Fewest steps for a meaningful median and spread."""


@dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    """Settings for captures: which steps count as slow, and how many are recorded.

    A step is slow when it takes longer than ``median + max(deviations * 1.4826 * MAD, min_excess * median)`` of the
    last `history` steps (MAD: median absolute deviation from the median). When `sustained` steps in a row are slow, the
    next ones are recorded into a folder of their own, ``slow-step-120``. A change that lasts for more than half of
    `history` becomes the new usual. Some steps are not judged: those in which the profiler runs or a checkpoint is
    saved, and the first step after validation, an epoch's end or a window.

    Attributes:
        deviations: A step is slow from this many standard deviations on, estimated by the MAD.
        min_excess: A step is never slow if its excess is below this fraction of the median.
        history: Steps that the median is over.
        sustained: Slow steps in a row that start a capture.
        warmup: Steps in which the profiler runs but keeps nothing.
        active: Steps recorded in a capture.
        cooldown: Steps after a capture in which none is started.
        max_captures: Captures of slow steps in a fit, for each rank.
        max_bytes: No capture is started, not even on demand, once this rank's captures take this much disk space.
        on_file: Also capture when a file ``profile-now`` appears in the run's folder. The callback looks for it every
            second and deletes it. With several ranks, rank 0 does so for all.
        on_signal: Also capture on SIGUSR2, in the process that receives it.

    Raises:
        TypeError: A number has the wrong type.
        ValueError: A number is too small, or `history` is shorter than 20 steps.
    """

    deviations: float = 6.0
    min_excess: float = 0.25
    history: int = 100
    sustained: int = 3
    warmup: int = 1
    active: int = 3
    cooldown: int = 100
    max_captures: int = 3
    max_bytes: int = 512 * 2**20
    on_file: bool = True
    on_signal: bool = False

    def __post_init__(self) -> None:
        least = {"history": LEAST_HISTORY, "sustained": 1, "active": 1}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in ("on_file", "on_signal"):
                if not isinstance(value, bool):
                    raise TypeError(f"{item.name} must be True or False, not {value!r}")
                continue
            whole = item.name not in ("deviations", "min_excess")
            check_number(item.name, value, least=least.get(item.name, 0), whole=whole)


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
