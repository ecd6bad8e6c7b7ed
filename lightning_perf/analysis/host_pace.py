"""How fast the host could go: what it needs for a step, however fast the device is."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_perf.analysis.blocked_calls import blocked_ns
from lightning_perf.analysis.intervals import merge
from lightning_perf.analysis.windows import averaged_steps, in_averaged_steps
from lightning_perf.trace.columns import NO_ROW
from lightning_perf.trace.trace import Trace

__all__ = ["HostPace", "bounded_by_host", "host_pace"]


@dataclass(frozen=True)
class HostPace:
    """The host's time for the averaged steps, its waits for the device left out: those a faster one shortens.

    Attributes:
        steps: Steps that the figures are over.
        whole_ns: From the begins to the ends of the host's own marks of the steps, however long the device then works
            on: Python, operators, launches and waits for input. In a recording that marks no step, as `operators_ns`.
        operators_ns: Inside operators.
    """

    steps: int
    whole_ns: int
    operators_ns: int

    @property
    def slowest_step_ns(self) -> float:
        """What a step takes a host that is as slow as in the recording: the profiler takes time for each operator."""
        return self.whole_ns / max(self.steps, 1)

    @property
    def fastest_step_ns(self) -> float:
        """What a step takes a host that does nothing but run operators."""
        return self.operators_ns / max(self.steps, 1)


def host_pace(trace: Trace) -> HostPace | None:
    """Measure what the host needs for a step.

    Args:
        trace: The recording.

    Returns:
        The figures; None without a device.
    """
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
    """What less device time saves of a step that the host, too, needs time for.

    Args:
        least_ns: Least saving as far as the device goes.
        most_ns: Most.
        step_ns: The step.
        pace: The host's.

    Returns:
        Least and most saving: at most what leaves the host's operators their time; at least half of what leaves a host
        that is as slow as in the recording its time, since on the edge it becomes what the step waits for.

    Example:
        >>> bounded_by_host(30.0, 60.0, 100.0, HostPace(steps=1, whole_ns=80, operators_ns=50))
        (10.0, 50.0)
    """
    slowest_ns, fastest_ns = (0.0, 0.0) if pace is None else (pace.slowest_step_ns, pace.fastest_step_ns)
    most_ns = max(0.0, min(most_ns, step_ns - fastest_ns))
    return min(least_ns, most_ns, max(0.0, step_ns - slowest_ns) / 2), most_ns
