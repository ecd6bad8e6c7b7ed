"""Launches: their cost to the host, the queue of launched work, clock skew, and the host's pace."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.intervals import (
    Series,
    averaged_steps,
    exclusive_ns,
    in_averaged_host_steps,
    in_averaged_steps,
    merge,
    subtract,
    thin,
    union,
)
from lightning_perf.analysis.steps.breakdown import (
    PHASES,
    RuntimeKind,
    host_phases,
    host_sets,
    phases_at,
    runtime_kinds,
)
from lightning_perf.analysis.steps.idle import Gaps, device_busy, find_gaps
from lightning_perf.trace.columns import NO_ROW, BoolArray, Int64Array
from lightning_perf.trace.indexing import distinct, distinct_rows, used_codes
from lightning_perf.trace.trace import Trace

SHORT_KERNEL_NS = 10_000
"""Kernels shorter than this cost about as much to launch as to run. A launch takes 2 to 10 µs of host time."""

LAUNCH_BOUND_SHARE = 0.15
"""From this share on, the step is launch-bound. This is XProf's threshold for *high* kernel launch time
(https://github.com/openxla/xprof, ``xprof/convert/op_stats_to_input_pipeline_analysis.cc``,
``kHighlyKernelLaunchBoundThresholdInPercent``)."""

LONGEST_DISPATCH_NS = 1_000_000
"""Issuing an operator costs some tens of µs. A longer gap has a cause of its own: loading a module on first use,
choosing an algorithm, a blocking copy, a checkpoint."""

_GRAPH_CALLS = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")


class LaunchDelay(Struct, frozen=True):
    """Time from the start of a launch call to the start of its kernel; for a graph, of its first kernel.

    Attributes:
        p50_ns: Median.
        p90_ns: 90th percentile.
        p99_ns: 99th percentile.
    """

    p50_ns: int
    p90_ns: int
    p99_ns: int


class GraphLaunches(Struct, frozen=True):
    """Launches of whole graphs (CUDA graphs, HIP graphs).

    Attributes:
        calls: Graph launches.
        kernels: Pieces of device work that they started.
        kernels_per_graph: Their mean per graph.
        call_ns: Host time inside the calls.
    """

    calls: int
    kernels: int
    kernels_per_graph: float
    call_ns: int


class LaunchBound(Struct, frozen=True):
    """Whether the step waits for the host to issue work, and how long.

    Only device-idle gaps of at most `LONGEST_DISPATCH_NS` count. Their time in launch calls, and in operators with
    nothing in the queue, is waiting. The Python code between operators counts too if that is at least half of the gap,
    after queued work, input, allocations and waits for the device are subtracted. Longer gaps are idle time of another
    kind.

    Attributes:
        bound: Whether `share` is at least `LAUNCH_BOUND_SHARE`.
        share: Part of the steps' wall time, 0 to 1.
        waiting_ns: All of it, over all averaged steps: the sum of the next three.
        launch_ns: The part inside launch calls.
        operator_ns: The part inside operators and other runtime calls.
        python_ns: The part between them.
    """

    bound: bool
    share: float
    waiting_ns: int
    launch_ns: int
    operator_ns: int
    python_ns: int


class Launches(Struct, frozen=True):
    """The cost of launching, over the averaged steps. Divide by `steps` for a figure per step.

    Attributes:
        steps: Steps that the figures are over.
        calls: Launch calls.
        call_ns: Host time inside them, all threads.
        exposed_ns: Time inside them that neither device work nor the wait for input overlaps: the breakdown's
            ``kernel_launch``.
        delay: From launch to start; None if no launch of a kernel was recorded.
        queue: Queue depth; None if no launch was recorded.
        graphs: Graph launches; None without any.
        kernels: Kernels, collectives included.
        unlinked_kernels: Kernels without a recorded launch.
        short_kernels: Kernels shorter than `SHORT_KERNEL_NS`.
        short_kernel_ns: Their time.
        outrun_kernels: Kernels shorter than their own launch call. The kernels of a graph share one call.
        launch_bound: Whether the step is launch-bound; None if the file is truncated.
        empty_calls: Launch calls without recorded work. Calls that capture a graph start no work and do not count.
    """

    steps: int
    calls: int
    call_ns: int
    exposed_ns: int
    delay: LaunchDelay | None
    queue: QueueDepth | None
    graphs: GraphLaunches | None
    kernels: int
    unlinked_kernels: int
    short_kernels: int
    short_kernel_ns: int
    outrun_kernels: int
    launch_bound: LaunchBound | None
    empty_calls: int = 0


def launches(trace: Trace) -> Launches | None:
    """Measure the cost of launches in a recording; None without a device."""
    if not len(trace.device):
        return None
    averaged = averaged_steps(trace)
    starts, ends = trace.steps.start_ns[averaged], trace.steps.end_ns[averaged]
    wall_ns = int((ends - starts).sum())
    calls = trace.links.is_launch & in_averaged_host_steps(trace, trace.runtime.start_ns)
    ran = in_averaged_steps(trace, trace.device.start_ns)
    kernels = np.flatnonzero(ran & (trace.device.is_compute | trace.device.is_collective))
    call_of = trace.links.device_runtime[kernels]
    linked = call_of >= 0
    duration = trace.device.duration_ns[kernels]
    # The first kernel of each call. The other kernels of a graph wait for one another, not for their launch.
    first, place = distinct_rows(call_of[linked])
    alone = np.bincount(place, minlength=len(first)) == 1
    first = np.flatnonzero(linked)[first]
    started_by = call_of[first]
    delay = trace.device.start_ns[kernels[first]] - trace.runtime.start_ns[started_by]
    short = duration < SHORT_KERNEL_NS
    sets = host_sets(trace)
    _, _, exposed, _ = exclusive_ns((device_busy(trace), sets["input"], sets["kernel_launch"]), starts, ends)
    return Launches(
        steps=int(averaged.sum()),
        calls=int(calls.sum()),
        call_ns=int(trace.runtime.duration_ns[calls].sum()),
        exposed_ns=int(exposed.sum()),
        delay=_delay(delay),
        queue=queue_depth(trace, ran, wall_ns),
        graphs=_graphs(trace, calls),
        kernels=len(kernels),
        unlinked_kernels=int((~linked).sum()),
        short_kernels=int(short.sum()),
        short_kernel_ns=int(duration[short].sum()),
        outrun_kernels=int((duration[first] < trace.runtime.duration_ns[started_by])[alone].sum()),
        launch_bound=None if trace.problems.lacks_work or not wall_ns else _launch_bound(find_gaps(trace), wall_ns),
        empty_calls=0 if trace.problems.lacks_work else int((calls & _lost_work(trace)).sum()),
    )


def _lost_work(trace: Trace) -> BoolArray:
    """Find launch calls without device work of their correlation, except those that captured a graph.

    torch drops kernels at the start of a session if their converted times lie before it
    (https://github.com/pytorch/pytorch/issues/192021).
    """
    runtime, worked = trace.runtime, trace.device.correlation
    lost = trace.links.is_launch & (runtime.correlation > 0) & ~np.isin(runtime.correlation, worked)
    begins = np.flatnonzero(trace.names_where(lambda name: "StreamBeginCapture" in name)[runtime.name])
    ends = np.flatnonzero(trace.names_where(lambda name: "StreamEndCapture" in name)[runtime.name])
    for thread in np.unique(runtime.thread[np.concatenate((begins, ends))]).tolist():
        rows = np.flatnonzero(runtime.thread == thread)  # in the order of time
        change = np.isin(rows, begins).astype(np.int64) - np.isin(rows, ends)
        depth = np.cumsum(change)
        lost[rows[depth - min(0, int(depth.min())) > 0]] = False  # one that began before the recording counts too
    return lost


def _delay(delay: Int64Array) -> LaunchDelay | None:
    if not len(delay):
        return None
    # With skewed clocks a kernel can seem to start before its launch.
    p50, p90, p99 = np.percentile(np.maximum(delay, 0), [50, 90, 99])
    return LaunchDelay(round(float(p50)), round(float(p90)), round(float(p99)))


def _graphs(trace: Trace, calls: BoolArray) -> GraphLaunches | None:
    graph = calls & trace.names_where(lambda name: name.startswith(_GRAPH_CALLS))[trace.runtime.name]
    count = int(graph.sum())
    if not count:
        return None
    started = trace.links.device_runtime[trace.links.device_runtime >= 0]
    kernels = int(graph[started].sum())
    return GraphLaunches(count, kernels, kernels / count, int(trace.runtime.duration_ns[graph].sum()))


def _launch_bound(gaps: Gaps, wall_ns: int) -> LaunchBound:
    parts = gaps.parts_ns
    launch = parts["kernel_launch"]
    operator = parts["host_compute"] + parts["runtime_other"]
    python = parts["host_other"]
    short = gaps.end_ns - gaps.start_ns <= LONGEST_DISPATCH_NS
    dispatching = short & (launch + operator >= python)
    launch_ns, operator_ns = int(launch[short].sum()), int(operator[short].sum())
    python_ns = int(python[dispatching].sum())
    waiting_ns = launch_ns + operator_ns + python_ns
    share = waiting_ns / wall_ns
    return LaunchBound(share >= LAUNCH_BOUND_SHARE, share, waiting_ns, launch_ns, operator_ns, python_ns)


class ClockSkew(Struct, frozen=True):
    """How far the clocks of host and device disagree, over the whole recording.

    The recorder converts the device's times to the host's clock. Where the conversion is wrong, overlap, exposed time
    and idle time are wrong by as much.

    Attributes:
        early: Pieces of device work that begin before their launch call does.
        linked: Pieces of device work with a recorded launch.
        lead_ns: The largest such difference. The clocks differ by at least that.
    """

    early: int
    linked: int
    lead_ns: int


def clock_skew(trace: Trace) -> ClockSkew | None:
    """Look for device work of a recording that begins before it was launched."""
    call = trace.links.device_runtime
    linked = np.flatnonzero(call >= 0)
    lead = trace.runtime.start_ns[call[linked]] - trace.device.start_ns[linked]
    early = int((lead > 0).sum())
    return ClockSkew(early, len(linked), int(lead.max())) if early else None


class StreamQueue(Struct, frozen=True):
    """The queue of one stream.

    Attributes:
        device: Device ordinal.
        stream: Stream number.
        items: Kernels, copies and memsets that passed through it.
        max: Largest depth.
        mean: Mean depth over the wall time of the averaged steps.
        empty_share: Part of that time in which it was empty, 0 to 1.
    """

    device: int
    stream: int
    items: int
    max: int
    mean: float
    empty_share: float


class QueueDepth(Struct, frozen=True):
    """How much launched work waits for its start.

    The depth rises at the start of a launch call, and falls when work starts. A queue that is hardly ever empty hides
    the cost of launches. If it is empty most of the time, the host launches only just in time, or too late.

    Attributes:
        max: Largest depth, all streams together.
        mean: Mean depth over the wall time of the averaged steps.
        empty_share: Part of that time in which all queues were empty, 0 to 1.
        streams: Each stream, the busiest first.
        series: The depth over time, all streams together.
    """

    max: int
    mean: float
    empty_share: float
    streams: tuple[StreamQueue, ...]
    series: Series


def queue_depth(trace: Trace, rows: BoolArray, wall_ns: int) -> QueueDepth | None:
    """Follow the queues of the device rows that have a recorded launch; None if none has."""
    device = trace.device
    chosen = np.flatnonzero(rows & (trace.links.device_runtime >= 0))
    if not len(chosen) or wall_ns <= 0:
        return None
    started = device.start_ns[chosen]
    # With skewed clocks work can seem to start before its launch. Then it never waited.
    entered = np.minimum(trace.runtime.start_ns[trace.links.device_runtime[chosen]], started)
    streams = []
    numbers, code = distinct(device.stream[chosen])
    keys, group = distinct(device.device[chosen] * np.int64(len(numbers)) + code)
    for at, key in enumerate(keys.tolist()):
        mine = group == at
        depth = _depth(entered[mine], started[mine], wall_ns)
        streams.append(StreamQueue(key // len(numbers), int(numbers[key % len(numbers)]), int(mine.sum()), *depth))
    streams.sort(key=lambda queue: (-queue.items, queue.device, queue.stream))
    greatest, mean, empty_share = _depth(entered, started, wall_ns)
    return QueueDepth(greatest, mean, empty_share, tuple(streams), _series(trace, entered, started))


def _depth(entered: Int64Array, started: Int64Array, wall_ns: int) -> tuple[int, float, float]:
    """Return largest and mean depth, and the share of the time at depth 0. ``started`` ascends."""
    order = np.sort(entered)
    # Right after each entry. Work that starts at that instant still counts.
    depth = np.arange(1, len(order) + 1) - np.searchsorted(started, order, side="left")
    waiting = merge(order, started[np.argsort(entered, kind="stable")]).length_ns
    return int(depth.max()), float((started - entered).sum()) / wall_ns, max(0.0, 1 - waiting / wall_ns)


def _series(trace: Trace, entered: Int64Array, started: Int64Array) -> Series:
    time = np.concatenate([entered, started])
    change = np.ones(len(time), dtype=np.int64)
    change[len(entered) :] = -1
    order = np.argsort(time, kind="stable")  # entries before starts at one instant: the depth is never negative
    return thin(time[order], np.cumsum(change[order]), trace.begin_ns)


UNHINDERED = 25
"""This percentile of the durations of one kind of call is the call's own cost. If the training waits for the device,
more than half of the launches may find the queue full."""


def blocked_ns(trace: Trace) -> Int64Array:
    """Return how long each call of `Trace.runtime` kept the host waiting for the device.

    A synchronizing call does nothing but wait. A launch returns at once, unless the queue is full: then it waits for
    the device to take a kernel from it. A copy from pageable memory waits until its stream is empty
    (https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html). So the time of launches and copies beyond
    the fastest quarter of their kind is waiting, as far as the device works meanwhile.
    """
    runtime = trace.runtime
    kinds = runtime_kinds(trace)
    blocked: Int64Array = np.where(kinds == RuntimeKind.SYNC, runtime.duration_ns, 0)
    starts_work = np.zeros(len(runtime), dtype=np.bool_)
    starts_work[trace.links.device_runtime[trace.links.device_runtime != NO_ROW]] = True
    calls = np.flatnonzero(starts_work & (kinds != RuntimeKind.SYNC) & in_averaged_host_steps(trace, runtime.start_ns))
    for code in used_codes(runtime.name[calls]):
        rows = calls[runtime.name[calls] == code]
        blocked[rows] = runtime.duration_ns[rows] - np.percentile(runtime.duration_ns[rows], UNHINDERED)
    blocked[calls] = np.clip(
        blocked[calls], 0, device_busy(trace).covered(runtime.start_ns[calls], runtime.end_ns[calls])
    )
    return blocked


PROFILER_SLOWS = 2.5
"""The most that the profiler slows down operators of the host. Beside an H200, a step of ResNet-50 in FP16, which the
host bounds, took 2.3 times as long with it (59.8 and 25.6 ms)."""


class HostPace(Struct, frozen=True):
    """The host's time for the averaged steps, without its waits for the device, which a faster device shortens.

    Attributes:
        steps: Steps that the figures are over.
        whole_ns: From the starts to the ends of the host's own marks of the steps, even if the device then continues to
            work: Python, operators, launches and waits for input. In a recording without marked steps, the same as
            `operators_ns`.
        operators_ns: Time inside operators.
    """

    steps: int
    whole_ns: int
    operators_ns: int

    @property
    def slowest_step_ns(self) -> float:
        """Time of a step if the host is as slow as in the recording. The profiler takes time for each operator."""
        return self.whole_ns / max(self.steps, 1)

    @property
    def fastest_step_ns(self) -> float:
        """Time of a step if the host does nothing but run operators, without the profiler."""
        return self.operators_ns / max(self.steps, 1) / PROFILER_SLOWS


def host_pace(trace: Trace) -> HostPace | None:
    """Measure the host's own time for a step."""
    if not len(trace.device):
        return None
    steps, averaged, runtime = trace.steps, averaged_steps(trace), trace.runtime
    waits = blocked_ns(trace)
    counted = in_averaged_host_steps(trace, runtime.start_ns) & (trace.links.runtime_operator != NO_ROW)
    outermost = (trace.links.operator_parent == NO_ROW) & in_averaged_host_steps(trace, trace.operators.start_ns)
    operators_ns = max(0, int(trace.operators.duration_ns[outermost].sum()) - int(waits[counted].sum()))
    whole_ns = operators_ns
    if steps.marked:
        marks = merge(steps.host_start_ns[averaged], steps.host_end_ns[averaged])
        whole_ns = max(0, marks.length_ns - int(waits[marks.contains(runtime.start_ns)].sum()))
    return HostPace(int(averaged.sum()), whole_ns, operators_ns)


def bounded_by_host(least_ns: float, most_ns: float, step_ns: float, pace: HostPace | None) -> tuple[float, float]:
    """Limit a saving of device time to the step's saving, since the host needs time for the step too."""
    slowest_ns, fastest_ns = (0.0, 0.0) if pace is None else (pace.slowest_step_ns, pace.fastest_step_ns)
    most_ns = max(0.0, min(most_ns, step_ns - fastest_ns))
    return min(least_ns, most_ns, max(0.0, step_ns - slowest_ns) / 2), most_ns


ISSUING = ("kernel_launch", "runtime_other", "host_compute", "host_other")
"""Classes of idle time in which the host issues work: launch calls, operators, and the Python around them."""

MODEL = ("forward", "backward")


class StepFloor(Struct, frozen=True):
    """The time that a step keeps if the host launches the forward and the backward pass in no time, in ns per step.

    Attributes:
        outside_ns: Time of the host outside of both passes, without its waits for the device.
        long_ns: Gaps of the device of over `LONGEST_DISPATCH_NS` in both passes. They may have causes of their own,
            which stay.
        waits_for_device: Calls per step in which the host waits for the device, however short.
    """

    outside_ns: float
    long_ns: float
    busy_ns: float
    waits_for_device: float


def step_floor(trace: Trace) -> StepFloor | None:
    """Measure the floor of a recording's steps; None without a device, or for a truncated recording."""
    steps, averaged = trace.steps, averaged_steps(trace)
    if not len(trace.device) or trace.problems.lacks_work or not averaged.any():
        return None
    gaps = find_gaps(trace)
    waits_ns = np.sum([gaps.parts_ns[name] for name in ISSUING], axis=0)
    in_model = np.isin(phases_at(trace, gaps.end_ns), [PHASES.index(name) for name in MODEL])
    is_long = gaps.end_ns - gaps.start_ns > LONGEST_DISPATCH_NS
    phases = host_phases(trace)
    marks = merge(steps.host_start_ns[averaged], steps.host_end_ns[averaged])
    outside = subtract(marks, union(*(phases[name] for name in MODEL)))
    start_ns = trace.runtime.start_ns
    outside_ns = max(0, outside.length_ns - int(blocked_ns(trace)[outside.contains(start_ns)].sum()))
    synchronizes = (runtime_kinds(trace) == RuntimeKind.SYNC) & in_averaged_host_steps(trace, start_ns)
    count = int(averaged.sum())
    return StepFloor(
        outside_ns=outside_ns / count,
        long_ns=float(waits_ns[in_model & is_long].sum()) / count,
        busy_ns=float(device_busy(trace).covered(steps.start_ns[averaged], steps.end_ns[averaged]).sum()) / count,
        waits_for_device=int(synchronizes.sum()) / count,
    )
