"""What a change can save of a step: only the share that can shrink does (Amdahl, AFIPS 1967).

Device work saves step time only while it is what the step waits for, and a step is never shorter than the host needs
to issue it. So savings of kernel time are scaled to the time in which compute is exposed, and capped by the host's
work.
"""

from __future__ import annotations

from lightning_perf.analysis.host.host_pace import bounded_by_host
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import MIN_SHARE
from lightning_perf.units import format_share

__all__ = ["device_saving_ns", "each", "share_of_step", "step_ns", "whole", "worth_it"]


def step_ns(analysis: RankAnalysis) -> float:
    """Mean step time, 0 when there is none."""
    return analysis.breakdown.wall.mean_ns or 0.0


def share_of_step(time_ns: float, analysis: RankAnalysis) -> str:
    """A time as a part of the step, in words: at most all of it, though threads may add up to more."""
    step = step_ns(analysis)
    return format_share(min(1.0, time_ns / step) if step > 0 else None)


def worth_it(saving_ns: float, analysis: RankAnalysis) -> bool:
    """Whether a saving a step is large enough to report."""
    step = step_ns(analysis)
    return step > 0 and saving_ns >= MIN_SHARE * step


def device_saving_ns(analysis: RankAnalysis, least_ns: float, most_ns: float) -> tuple[float, float]:
    """The step time won when compute kernels take less time.

    Args:
        analysis: The rank.
        least_ns: Least kernel time saved a step, summed over kernels.
        most_ns: Most kernel time saved a step.

    Returns:
        Least and most saving, nanoseconds a step: less where kernels overlap each other or the device waits for the
        host anyway. The most leaves the host the time that its operators take. The least is half of what leaves a host
        that is as slow as under the profiler its time: on the edge it becomes what the step waits for.
    """
    arithmetic, launches = analysis.arithmetic, analysis.launches
    if arithmetic is None or not arithmetic.compute_ns:
        return 0.0, 0.0
    compute = analysis.breakdown.category("device_compute").mean_ns or 0.0
    factor = min(1.0, compute / (arithmetic.compute_ns / max(arithmetic.steps, 1)))
    if launches is not None and launches.launch_bound is not None:
        factor *= 1 - launches.launch_bound.share
    return bounded_by_host(least_ns * factor, most_ns * factor, step_ns(analysis), analysis.host_pace)


def whole(analysis: RankAnalysis) -> str:
    """What shares are of: the step, or a recording that marks none."""
    return "the step" if analysis.breakdown.marked else "the recording"


def each(analysis: RankAnalysis) -> str:
    """What figures are for: each step, or a recording that marks none."""
    return "a step" if analysis.breakdown.marked else "in the recording"
