"""Which steps are recorded, with which details and by which ranks: the options of `PerfCallback` and `PerfLoop`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from lightning_perf.callbacks.recording.captures import CaptureOptions, capture_config
from lightning_perf.callbacks.recording.overhead_budget import check_budget
from lightning_perf.callbacks.recording.schedule import Schedule
from lightning_perf.callbacks.recording.torch_profiler import RecordingOptions

__all__ = ["RecordingPlan", "check_choice", "checked_ranks", "recording_plan"]


@dataclass(frozen=True, kw_only=True)
class RecordingPlan:
    """Which steps are recorded, with which details and by which ranks.

    Attributes:
        schedule: Which steps to record.
        open_fields: The fields of the schedule that the user left open. A short fit may shorten them.
        details: Which details the profiler records.
        captures: When to record steps outside of the schedule; None for never.
        max_overhead: The most that the profiler may cost; None for no limit.
        ranks: The ranks that record; None for all.
    """

    schedule: Schedule
    open_fields: frozenset[str]
    details: RecordingOptions
    captures: CaptureOptions | None
    max_overhead: float | timedelta | None
    ranks: frozenset[int] | None


def recording_plan(
    *,
    skip_first: int | None,
    wait: int | None,
    warmup: int | None,
    active: int,
    repeat: int,
    record_shapes: bool,
    profile_memory: bool,
    with_stack: bool,
    with_flops: bool,
    capture_slow_steps: CaptureOptions | bool,
    max_overhead: float | timedelta | None,
    ranks: Collection[int] | None,
) -> RecordingPlan:
    """Check the options of `PerfCallback` and `PerfLoop` with these names, and combine them into a plan.

    Raises:
        TypeError: An option has the wrong type.
        ValueError: An option is out of its range.
    """
    given = {"skip_first": skip_first, "wait": wait, "warmup": warmup}
    numbers = {name: value for name, value in given.items() if value is not None}
    check_budget(max_overhead)
    return RecordingPlan(
        schedule=Schedule(**numbers, active=active, repeat=repeat),
        open_fields=frozenset(given) - frozenset(numbers),
        details=RecordingOptions(
            record_shapes=record_shapes, profile_memory=profile_memory, with_stack=with_stack, with_flops=with_flops
        ),
        captures=capture_config(capture_slow_steps),
        max_overhead=max_overhead,
        ranks=checked_ranks(ranks),
    )


def checked_ranks(ranks: Collection[int] | None) -> frozenset[int] | None:
    """Check the argument of ``PerfCallback(ranks=…)``.

    Raises:
        TypeError: It is not a collection of integers.
        ValueError: A rank is negative.
    """
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
    """Check an option that takes one of a few values.

    Raises:
        ValueError: It has another value.
    """
    if value not in known:
        raise ValueError(f"{name}={value!r} is unknown: give one of {', '.join(map(repr, known))}")
