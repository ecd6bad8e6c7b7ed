"""How fast the host could go, however fast the device is, and the time that a step keeps if it launches in no time."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from lightning_perf.analysis.core.averaged_steps import averaged_steps, in_averaged_steps
from lightning_perf.analysis.core.intervals import merge, subtract, union
from lightning_perf.analysis.host.launches import LONGEST_DISPATCH_NS
from lightning_perf.analysis.steps.categories import RuntimeKind, runtime_kinds
from lightning_perf.analysis.steps.idle import device_busy, find_gaps
from lightning_perf.analysis.steps.phase_timeline import PHASES, host_phases, phases_at
from lightning_perf.trace.columns import NO_ROW, Int64Array
from lightning_perf.trace.indexing import used_codes
from lightning_perf.trace.trace import Trace

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
    calls = np.flatnonzero(starts_work & (kinds != RuntimeKind.SYNC) & in_averaged_steps(trace, runtime.start_ns))
    for code in used_codes(runtime.name[calls]):
        rows = calls[runtime.name[calls] == code]
        blocked[rows] = runtime.duration_ns[rows] - np.percentile(runtime.duration_ns[rows], UNHINDERED)
    blocked[calls] = np.clip(
        blocked[calls], 0, device_busy(trace).covered(runtime.start_ns[calls], runtime.end_ns[calls])
    )
    return blocked


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
        """Time of a step if the host does nothing but run operators."""
        return self.operators_ns / max(self.steps, 1)


def host_pace(trace: Trace) -> HostPace | None:
    """Measure the host's own time for a step."""
    if not len(trace.device):
        return None
    steps, averaged, runtime = trace.steps, averaged_steps(trace), trace.runtime
    waits = blocked_ns(trace)
    counted = in_averaged_steps(trace, runtime.start_ns) & (trace.links.runtime_operator != NO_ROW)
    outermost = (trace.links.operator_parent == NO_ROW) & in_averaged_steps(trace, trace.operators.start_ns)
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
    synchronizes = (runtime_kinds(trace) == RuntimeKind.SYNC) & in_averaged_steps(trace, start_ns)
    count = int(averaged.sum())
    return StepFloor(
        outside_ns=outside_ns / count,
        long_ns=float(waits_ns[in_model & is_long].sum()) / count,
        busy_ns=float(device_busy(trace).covered(steps.start_ns[averaged], steps.end_ns[averaged]).sum()) / count,
        waits_for_device=int(synchronizes.sum()) / count,
    )
