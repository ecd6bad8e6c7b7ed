"""The step-time breakdown: time marked by phase, sets of intervals by category, and their mean time."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.analysis.intervals import (
    EMPTY,
    Intervals,
    averaged_steps,
    cached_per_trace,
    exclusive_ns,
    find_row,
    merge,
    outlying,
    subtract,
    union,
)
from lightning_perf.trace.columns import NO_ROW, BoolArray, DeviceKind, Int64Array, Spans, matched_part
from lightning_perf.trace.indexing import used_codes
from lightning_perf.trace.trace import Trace

PHASES = ("fetch", "transfer", "forward", "backward", "optimizer", "validation", "checkpoint", "other")
"""The phases of a step, in the order in which they are shown. ``other`` is time outside of all phases."""

OWN_PREFIX = "perf::"
"""The prefix of `PerfCallback`'s ranges. The phase follows."""

# A rule is a phase and a pattern for the names of marks, tried in this order. PyTorch wraps `__next__` of its loaders'
# iterators (`enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__`, also `enumerate(DataPipe)#…`). It also wraps
# `step` and `zero_grad` of its optimizers. Lightning's `PyTorchProfiler` puts `[pl][profile]` (1.x: also `[pl]`) before
# the names of its actions. Such names are `[_TrainingEpochLoop].train_dataloader_next`,
# `[Strategy]SingleDeviceStrategy.batch_to_device`, `[LightningModule]Net.optimizer_step`, …
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("fetch", re.compile(r"^enumerate\(Data(Loader|Pipe)\)#")),
    ("optimizer", re.compile(r"^Optimizer\.(step|zero_grad)#")),
    ("checkpoint", re.compile(r"^\[pl\].*(save_checkpoint|ModelCheckpoint.*\.on_)")),
    ("validation", re.compile(r"^\[pl\].*(val_next|\.validation_step|run_evaluation|_validation_)")),
    ("fetch", re.compile(r"^\[pl\].*(train_dataloader_next|get_train_batch|predict_next|test_next)")),
    ("transfer", re.compile(r"^\[pl\].*(batch_to_device|_transfer_batch)")),
    ("backward", re.compile(r"^\[pl\].*(\.|\])(backward|run_training_batch_backward)$")),
    ("forward", re.compile(r"^\[pl\].*\.(training_step|predict_step|test_step)$")),
    ("optimizer", re.compile(r"^\[pl\].*(optimizer_step|optimizer_zero_grad|configure_gradient_clipping)")),
)

_BACKWARD_NODE = re.compile(r"^autograd::engine::evaluate_function|Backwards?\d*$|torch::autograd::AccumulateGrad$")


def mark_phase(name: str) -> str | None:
    """Return the phase that a mark names, or ``None`` for any other annotation."""
    if name.startswith(OWN_PREFIX):
        phase = name[len(OWN_PREFIX) :].split("#")[0]
        return phase if phase in PHASES else None
    return next((phase for phase, pattern in _RULES if pattern.search(matched_part(name))), None)


def is_backward_node(name: str) -> bool:
    """Return whether an operator is a node of the backward graph that the autograd engine runs."""
    return _BACKWARD_NODE.search(matched_part(name)) is not None


def has_own_marks(trace: Trace) -> bool:
    """Return whether the recording has ranges of `PerfCallback`."""
    named = (trace.names[code] for code in np.unique(trace.annotations.name))
    return any(name.startswith(OWN_PREFIX) and mark_phase(name) is not None for name in named)


def marks_by_phase(trace: Trace) -> dict[str, Spans]:
    """Return the annotations that name a phase, by phase.

    In a recording with ranges of `PerfCallback`, only those count: marks of others would count the same time twice, and
    less exactly.
    """
    table = trace.annotations
    named = {int(code): trace.names[code] for code in np.unique(table.name)}
    if has_own_marks(trace):
        named = {code: name for code, name in named.items() if name.startswith(OWN_PREFIX)}
    phase_of = {code: phase for code, name in named.items() if (phase := mark_phase(name)) is not None}
    marks = {}
    for phase in dict.fromkeys(phase_of.values()):
        marks[phase] = table.at(np.isin(table.name, [code for code, its in phase_of.items() if its == phase]))
    return marks


_OTHER = PHASES.index("other")

# Where marks are nested, the inner one counts. An optimizer's step runs the closure, with forward and backward in it.
# Validation runs a loop of its own. A fetch may move the batch.
_INNERMOST_FIRST = ("checkpoint", "validation", "transfer", "fetch", "backward", "forward", "optimizer")


@cached_per_trace
def host_phases(trace: Trace) -> dict[str, Intervals]:
    """Return when the host is in each phase.

    The ranges of `PerfCallback` are taken unchanged. In other recordings, the backward is also where the autograd
    engine runs nodes. The forward, unless marks name it, is where the training thread runs operators before the last
    backward of the step and outside other marks. A pause in either counts with it as long as the training thread begins
    nothing else in it.
    """
    found = dict.fromkeys(_INNERMOST_FIRST, EMPTY)
    of_phase = marks_by_phase(trace)
    for name, marks in of_phase.items():
        if name in found:
            # Only the training thread waits for its batch; a loader's own thread does not.
            rows = marks.thread == trace.steps.thread if name == "fetch" else np.ones(len(marks), dtype=np.bool_)
            found[name] = merge(marks.start_ns[rows], marks.end_ns[rows])
    if not has_own_marks(trace):
        node = trace.names_where(is_backward_node)[trace.operators.name]
        own = (trace.operators.thread == trace.steps.thread) & ~node
        found["backward"] = union(found["backward"], _backward(trace, node, own))
        if not len(found["forward"]):
            found["forward"] = _forward(trace, own, found, of_phase.get("optimizer"))
    claimed = EMPTY
    for name, active in found.items():
        found[name] = subtract(active, claimed)
        claimed = union(claimed, active)
    return found


@cached_per_trace
def phase_timeline(trace: Trace) -> tuple[Int64Array, NDArray[np.int8]]:
    """Return the host's phase over time: ascending starts, and the place in `PHASES` of the phase from each on."""
    begins, codes = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int8)]
    for name, active in host_phases(trace).items():
        begins += [active.start_ns, active.end_ns]
        codes += [np.full(len(active), PHASES.index(name), dtype=np.int8), np.full(len(active), _OTHER, dtype=np.int8)]
    begin, phase = np.concatenate(begins), np.concatenate(codes)
    # Where one phase ends and another begins at the same instant, the start comes last and so counts from there on.
    order = np.lexsort((phase != _OTHER, begin))
    return begin[order], phase[order]


def phases_at(trace: Trace, time_ns: Int64Array) -> NDArray[np.int8]:
    """Return the phase that the host is in at each instant, as a place in `PHASES`."""
    begin, phase = phase_timeline(trace)
    row = np.searchsorted(begin, time_ns, side="right")
    found: NDArray[np.int8] = np.append(phase, np.int8(_OTHER))[row - 1]  # row 0 reads the appended entry
    return found


@cached_per_trace
def launch_phases(trace: Trace) -> NDArray[np.int8]:
    """Return for each device row the phase of the host at its launch call, as a place in `PHASES`."""
    call = trace.links.device_runtime
    launched = np.full(len(call), _OTHER, dtype=np.int8)
    known = call != NO_ROW
    launched[known] = phases_at(trace, trace.runtime.start_ns[call[known]])
    return launched


def _backward(trace: Trace, node: BoolArray, own: BoolArray) -> Intervals:
    """Return when the autograd engine runs its nodes."""
    nodes = merge(trace.operators.start_ns[node], trace.operators.end_ns[node])
    training = trace.annotations.thread == trace.steps.thread
    starts = np.concatenate((trace.operators.start_ns[own], trace.annotations.start_ns[training]))
    starts.sort()
    return _close_gaps(nodes, starts)


def _forward(trace: Trace, own: BoolArray, found: dict[str, Intervals], optimizer: Spans | None) -> Intervals:
    """Return when the training thread runs operators before the last backward of the step, outside other phases."""
    backward, plain = found["backward"], EMPTY
    if optimizer is not None:
        # An optimizer's step that runs the backward is running the closure, and so the forward too.
        closure = backward.covered(optimizer.start_ns, optimizer.end_ns) > 0
        plain = merge(optimizer.start_ns[~closure], optimizer.end_ns[~closure])
    others = union(plain, *(active for name, active in found.items() if name not in ("forward", "optimizer")))
    work = subtract(merge(trace.operators.start_ns[own], trace.operators.end_ns[own]), others)
    steps = trace.steps
    work = _close_gaps(work, np.sort(np.concatenate((others.start_ns, steps.start_ns, steps.end_ns))))
    # The last backward that begins in each step ends the forward. A step without one is all forward (inference).
    last = np.searchsorted(backward.start_ns, steps.end_ns, side="left") - 1
    has = (last >= 0) & (backward.start_ns[np.maximum(last, 0)] >= steps.start_ns) if len(backward) else last >= 0
    until = steps.end_ns.copy()
    until[has] = backward.start_ns[last[has]]
    step = np.searchsorted(steps.start_ns, work.start_ns, side="right") - 1
    keep = (step >= 0) & (work.start_ns < until[np.maximum(step, 0)])
    return Intervals(work.start_ns[keep], work.end_ns[keep])


def _close_gaps(active: Intervals, starts_ns: Int64Array) -> Intervals:
    """Join neighbouring intervals when nothing starts between them (``starts_ns`` ascending)."""
    if len(active) < 2:
        return active
    gap_start, gap_end = active.end_ns[:-1], active.start_ns[1:]
    apart = np.searchsorted(starts_ns, gap_end, side="left") > np.searchsorted(starts_ns, gap_start, side="left")
    return Intervals(active.start_ns[np.concatenate(([True], apart))], active.end_ns[np.concatenate((apart, [True]))])


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


def is_host_collective(name: str) -> bool:
    """Return whether an annotation marks a collective that runs on the host. NCCL's annotations mark only its issue."""
    return name.startswith(("gloo:", "mpi:", "ucc:"))


def host_collectives(trace: Trace) -> Intervals:
    """Return when collectives run on the host."""
    marks = trace.annotations
    rows = trace.names_where(is_host_collective)[marks.name]
    return merge(marks.start_ns[rows], marks.end_ns[rows])


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
