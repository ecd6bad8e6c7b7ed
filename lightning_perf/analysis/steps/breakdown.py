"""The step-time breakdown: sets of intervals by category, and their mean time over the averaged steps."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.analysis.core.arrays import find_row, outlying
from lightning_perf.analysis.core.intervals import (
    EMPTY,
    Intervals,
    averaged_steps,
    cached_per_trace,
    exclusive_ns,
    merge,
)
from lightning_perf.analysis.steps.phase_timeline import marks_by_phase
from lightning_perf.trace.columns import NO_ROW, BoolArray, DeviceKind, Int64Array, matched_part
from lightning_perf.trace.indexing import used_codes
from lightning_perf.trace.trace import Trace


class RuntimeKind(IntEnum):
    """The purpose of a runtime or driver call, in the order of priority in the step-time breakdown."""

    LAUNCH = 0
    SYNC = 1
    ALLOC = 2
    OTHER = 3


# The host blocks in `cuda…Synchronize`, `cu…Synchronize`, `hip…Synchronize`, and in copies between host and device that
# are not called asynchronous (`.item()` on AMD is a `hipMemcpyWithStream`). Copies between devices, event queries and
# `cudaStreamWaitEvent` return at once. See https://docs.nvidia.com/cuda/cuda-runtime-api/ ("API synchronization
# behavior") and https://rocm.docs.amd.com/projects/HIP/. On Intel it blocks in Level Zero's `ze…Synchronize` and in
# Unified Runtime's `urEventWait` and `urQueueFinish`: https://oneapi-src.github.io/unified-runtime/core/api.html
_SYNC = re.compile(
    r"^(cuda|cu|hip)(\w*Synchronize|Memcpy(?!\w*(Async|DtoD|DeviceToDevice|Peer)))"
    r"|^ze\w*Synchronize|^ur(EventWait|QueueFinish)$",
    re.IGNORECASE,
)
_ALLOC = re.compile(
    r"^(cuda|hip)(Ext)?(Host)?(Malloc|Free|Alloc|Register|Unregister)"
    r"|^cu(Mem(Alloc|Free|HostAlloc|Create|Release|Map|Unmap|SetAccess|Address(Reserve|Free))|MemHost)"
    r"|^urUSM\w*(Alloc|Free)|^zeMem(Alloc|Free)",
    re.IGNORECASE,
)


def call_kind(name: str) -> RuntimeKind:
    """Return the purpose of a call that launches nothing, by its name."""
    name = matched_part(name)
    if _SYNC.match(name):
        return RuntimeKind.SYNC
    return RuntimeKind.ALLOC if _ALLOC.match(name) else RuntimeKind.OTHER


def runtime_kinds(trace: Trace) -> NDArray[np.uint8]:
    """Return the `RuntimeKind` of each row of `Trace.runtime`. `Links.is_launch` says which rows launch work.

    A copy to pageable memory returns only when it is done, even if its call is named asynchronous
    (https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html).
    """
    kind_of_name = np.full(len(trace.names) + 1, RuntimeKind.OTHER, dtype=np.uint8)
    for code in used_codes(trace.runtime.name):
        kind_of_name[code] = call_kind(trace.names[code])
    kinds: NDArray[np.uint8] = kind_of_name[trace.runtime.name]
    to_pageable = trace.names_where(lambda name: name.endswith("-> Pageable)"))[trace.device.name]
    call = trace.links.device_runtime[to_pageable]
    kinds[call[call != NO_ROW]] = RuntimeKind.SYNC
    kinds[trace.links.is_launch] = RuntimeKind.LAUNCH
    return kinds


CATEGORIES: tuple[tuple[str, str | None], ...] = (
    ("device_compute", None),
    ("communication", None),
    ("memcpy", None),
    ("memcpy_h2d", "memcpy"),
    ("memcpy_d2h", "memcpy"),
    ("memcpy_d2d", "memcpy"),
    ("memcpy_p2p", "memcpy"),
    ("memcpy_unknown", "memcpy"),
    ("memset", None),
    ("input", None),
    ("kernel_launch", None),
    ("runtime", None),
    ("runtime_sync", "runtime"),
    ("runtime_alloc", "runtime"),
    ("runtime_other", "runtime"),
    ("host_compute", None),
    ("host_other", None),
)
"""Every category and its parent, in order of display, which is also the order of priority."""

DEVICE_CATEGORIES: dict[str, DeviceKind] = {
    "device_compute": DeviceKind.COMPUTE,
    "communication": DeviceKind.COLLECTIVE,
    "memcpy_h2d": DeviceKind.H2D,
    "memcpy_d2h": DeviceKind.D2H,
    "memcpy_d2d": DeviceKind.D2D,
    "memcpy_p2p": DeviceKind.P2P,
    "memcpy_unknown": DeviceKind.COPY,
    "memset": DeviceKind.MEMSET,
}
"""The categories that device work fills, in order of priority."""

_RUNTIME_CATEGORIES: dict[str, RuntimeKind] = {
    "kernel_launch": RuntimeKind.LAUNCH,
    "runtime_sync": RuntimeKind.SYNC,
    "runtime_alloc": RuntimeKind.ALLOC,
    "runtime_other": RuntimeKind.OTHER,
}


HOST_CATEGORIES = ("input", *_RUNTIME_CATEGORIES, "host_compute", "host_other")
"""The categories that the host fills, in order of priority. The last one is the time of none of the others."""


@cached_per_trace
def host_sets(trace: Trace) -> dict[str, Intervals]:
    """Return when each category of the host is active, in order of priority, without ``host_other``."""
    sets = {"input": EMPTY}
    if (fetch := marks_by_phase(trace).get("fetch")) is not None:
        waits = fetch.thread == trace.steps.thread
        sets["input"] = merge(fetch.start_ns[waits], fetch.end_ns[waits])
    kinds = runtime_kinds(trace)
    for name, kind in _RUNTIME_CATEGORIES.items():
        rows = kinds == kind
        sets[name] = merge(trace.runtime.start_ns[rows], trace.runtime.end_ns[rows])
    sets["host_compute"] = merge(trace.operators.start_ns, trace.operators.end_ns)
    return sets


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
