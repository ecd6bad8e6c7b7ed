"""`Recording`: which steps are recorded, with which details and by which ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from lightning_perf.callbacks.recording.captures import CaptureOptions, capture_config
from lightning_perf.callbacks.recording.overhead_budget import check_budget
from lightning_perf.callbacks.recording.schedule import Schedule


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
        check_budget(self.max_overhead)
        if self.hang_after is not None and not 0 < self.hang_after < float("inf"):
            raise ValueError(f"hang_after={self.hang_after!r} must be a number of seconds above 0")
        _ = self.schedule, self.captures
        object.__setattr__(self, "ranks", checked_ranks(self.ranks))

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
        return capture_config(self.capture_slow_steps)


def checked_ranks(ranks: Collection[int] | None) -> frozenset[int] | None:
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
