"""Step-time breakdown: every nanosecond of a step belongs to exactly one category.

At each instant, the first active category of a fixed order gets the time. XProf orders event kinds the same way
(https://github.com/openxla/xprof, ``xprof/utils/event_span.h``), and so did the removed TensorBoard plugin
(https://github.com/pytorch/kineto, ``tb_plugin/torch_tb_profiler/profiler/overall_parser.py``). ``docs/definitions.md``
lists the differences.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.core.arrays import find_row, outlying
from lightning_perf.analysis.core.averaged_steps import averaged_steps
from lightning_perf.analysis.core.intervals import exclusive_ns, merge
from lightning_perf.analysis.steps.categories import CATEGORIES, DEVICE_CATEGORIES, host_sets
from lightning_perf.trace.columns import BoolArray, Int64Array
from lightning_perf.trace.trace import Trace

_OUTLIER_STEPS = 5
"""With fewer complete steps, no step is called an outlier."""


class StepTime(Struct, frozen=True):
    """One step of the recording.

    Attributes:
        number: The step's number, as the recording names it.
        start_ns: Its start, from the start of the recording.
        wall_ns: Its length.
        complete: Whether the recording holds all of it. Averages leave out incomplete steps.
    """

    number: int
    start_ns: int
    wall_ns: int
    complete: bool


class CategoryTime(Struct, frozen=True):
    """The time of one category in each step.

    Mean, spread and share are over `Breakdown.averaged_steps`.

    Attributes:
        name: The category, as in `CATEGORIES`.
        parent: The category that this one is part of, if any. The times of the rows without a parent sum to the wall
            time.
        per_step_ns: Its time in each step of `Breakdown.steps`. ``None`` if it does not apply: the rows of the device
            in a recording without a device.
        mean_ns: Mean.
        sd_ns: Standard deviation between steps (n − 1), ``None`` with fewer than two.
        min_ns: Minimum.
        max_ns: Maximum.
        share: Part of the wall time, 0 to 1. ``None`` if the file is truncated: device events come last in a file, so
            shares of the rest would mislead.
    """

    name: str
    parent: str | None
    per_step_ns: tuple[int, ...] | None
    mean_ns: float | None
    sd_ns: float | None
    min_ns: int | None
    max_ns: int | None
    share: float | None


class Outlier(Struct, frozen=True):
    """A step with an unusual wall time.

    Attributes:
        number: The step's number.
        wall_ns: Its length.
        excess_ns: The difference to the median step (negative: shorter).
        category: The category that departs most, in the same direction, from its own median.
    """

    number: int
    wall_ns: int
    excess_ns: int
    category: str


class Breakdown(Struct, frozen=True):
    """Where the step time goes.

    Attributes:
        steps: The steps, in time order.
        wall: The wall time of the steps: a row named ``wall``, with mean and spread like the categories.
        categories: One row for each of `CATEGORIES`, in that order.
        outliers: Steps with an unusual wall time, by a robust rule.
        averaged_steps: The number of steps that are averaged: the complete ones, or all if no step is complete.
        averages_cut_steps: Whether no step is complete, so that the averages include steps that the recording cut off.
        marked: Whether the recording marks its steps. Otherwise the one step is the whole recording.
        has_device: Whether the recording holds device work. Otherwise the rows of the device are missing.
        truncated: Whether the file ends early, or holds device work of unknown categories. Device events come last in a
            file, so times are then lower bounds, and shares are missing.
    """

    steps: tuple[StepTime, ...]
    wall: CategoryTime
    categories: tuple[CategoryTime, ...]
    outliers: tuple[Outlier, ...]
    averaged_steps: int
    averages_cut_steps: bool
    marked: bool
    has_device: bool
    truncated: bool

    def category(self, name: str) -> CategoryTime:
        """Return the row of one category, or raise a `KeyError` that lists them."""
        return find_row(self.categories, "category", name)


def breakdown(trace: Trace) -> Breakdown:
    """Divide the time of each step among the categories, to the nanosecond."""
    steps = trace.steps
    has_device = len(trace.device) > 0
    wall = steps.end_ns - steps.start_ns
    times = category_times(trace, trace.steps.start_ns, trace.steps.end_ns)
    averaged = averaged_steps(trace)
    truncated = trace.problems.lacks_work
    absent = () if has_device else (*DEVICE_CATEGORIES, "memcpy")
    rows = tuple(
        _row(name, parent, None if name in absent else times[name], wall, averaged, truncated)
        for name, parent in CATEGORIES
    )
    columns = (steps.number, steps.start_ns - trace.begin_ns, wall, steps.complete)
    return Breakdown(
        steps=tuple(StepTime(*step) for step in zip(*(column.tolist() for column in columns), strict=True)),
        wall=_row("wall", None, wall, wall, averaged, truncated),
        categories=rows,
        outliers=_outliers(steps.number, wall, steps.complete, rows),
        averaged_steps=int(averaged.sum()),
        averages_cut_steps=not steps.complete.any(),
        marked=steps.marked,
        has_device=has_device,
        truncated=truncated,
    )


def category_times(trace: Trace, start_ns: Int64Array, end_ns: Int64Array) -> dict[str, Int64Array]:
    """Return the time of each category in each of some spans, which do not overlap."""
    sets = {}
    for name, kind in DEVICE_CATEGORIES.items():
        rows = trace.device.kind == kind
        sets[name] = merge(trace.device.start_ns[rows], trace.device.end_ns[rows])
    sets |= host_sets(trace)
    times = dict(zip((*sets, "host_other"), exclusive_ns(sets.values(), start_ns, end_ns), strict=True))
    for name, parent in CATEGORIES:
        if parent is not None:
            times[parent] = times[parent] + times[name] if parent in times else times[name]
    return times


def _row(
    name: str, parent: str | None, times: Int64Array | None, wall: Int64Array, averaged: BoolArray, truncated: bool
) -> CategoryTime:
    if times is None or not len(times):
        return CategoryTime(name, parent, None if times is None else (), None, None, None, None, None)
    chosen = times[averaged]
    total = int(wall[averaged].sum())
    return CategoryTime(
        name=name,
        parent=parent,
        per_step_ns=tuple(times.tolist()),
        mean_ns=int(chosen.sum()) / len(chosen),
        sd_ns=float(chosen.std(ddof=1)) if len(chosen) > 1 else None,
        min_ns=int(chosen.min()),
        max_ns=int(chosen.max()),
        share=None if truncated or not total else int(chosen.sum()) / total,
    )


def _outliers(
    number: Int64Array, wall: Int64Array, complete: BoolArray, rows: tuple[CategoryTime, ...]
) -> tuple[Outlier, ...]:
    chosen = np.flatnonzero(complete)
    if len(chosen) < _OUTLIER_STEPS:
        return ()
    strange = outlying(wall[chosen])
    middle = float(np.median(wall[chosen]))
    times = {row.name: np.array(row.per_step_ns) for row in rows if row.parent is None and row.per_step_ns is not None}
    usual = {name: float(np.median(per_step[chosen])) for name, per_step in times.items()}
    found = []
    for step in chosen[strange].tolist():
        excess = int(wall[step] - middle)
        departure = {name: float(per_step[step]) - usual[name] for name, per_step in times.items()}
        pick = max if excess > 0 else min
        found.append(Outlier(int(number[step]), int(wall[step]), excess, pick(departure, key=departure.__getitem__)))
    return tuple(found)
