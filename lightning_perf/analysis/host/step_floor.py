"""The time that a step keeps if the host launches the model in no time, as with a CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_perf.analysis.core.averaged_steps import averaged_steps, in_averaged_steps
from lightning_perf.analysis.core.intervals import merge, subtract, union
from lightning_perf.analysis.host.host_pace import blocked_ns
from lightning_perf.analysis.host.launches import LONGEST_DISPATCH_NS
from lightning_perf.analysis.steps.idle import device_busy, find_gaps
from lightning_perf.analysis.steps.phase_timeline import PHASES, host_phases, phases_at
from lightning_perf.analysis.steps.runtime_calls import RuntimeKind, runtime_kinds
from lightning_perf.trace.trace import Trace

__all__ = ["StepFloor", "step_floor"]

ISSUING = ("kernel_launch", "runtime_other", "host_compute", "host_other")
"""Classes of idle time in which the host issues work: launch calls, operators, and the Python around them."""

MODEL = ("forward", "backward")


@dataclass(frozen=True)
class StepFloor:
    """The time that a step keeps if the host launches the forward and the backward pass in no time, in ns per step.

    Attributes:
        outside_ns: Time of the host outside of both passes, without its waits for the device.
        long_ns: Gaps of the device of over `LONGEST_DISPATCH_NS` in both passes. They may have causes of their own,
            which stay.
        busy_ns: Time in which the device works.
        waits_for_device: Calls per step in which the host waits for the device, however short.
    """

    outside_ns: float
    long_ns: float
    busy_ns: float
    waits_for_device: float


def step_floor(trace: Trace) -> StepFloor | None:
    """Measure the floor of a recording's steps.

    Returns:
        The figures; None for a recording without a device, or a truncated one.
    """
    steps, averaged = trace.steps, averaged_steps(trace)
    if not len(trace.device) or trace.problems.truncated or not averaged.any():
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
