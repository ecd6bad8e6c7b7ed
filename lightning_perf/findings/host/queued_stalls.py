"""The rule for work that is in the device's queue and does not start."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import counted, each, step_ns, whole, worth_it
from lightning_perf.units import format_duration, format_share

__all__ = ["queued_stalls"]

MIN_SHARE = 0.05


def queued_stalls(analysis: RankAnalysis) -> Finding | None:
    """Find long gaps in which the device idles although work was launched already.

    The device waits neither for the host nor for a launch. The recording does not show the reason, and may lack the
    work that ran. Model: none to all of the gaps.
    """
    idle = analysis.idle
    if idle is None:
        return None
    steps = max(idle.steps, 1)
    stalled_ns = idle.stalled_ns / steps
    if stalled_ns < MIN_SHARE * step_ns(analysis) or not worth_it(stalled_ns, analysis):
        return None
    gaps = idle.stalls / steps
    evidence = [
        (
            f"{counted(gaps, 'gap')} above 100 µs {each(analysis)}, {format_duration(stalled_ns)} together. Launched "
            "work waits there for something other than the host."
        )
    ]
    longest = next((gap for gap in idle.longest if gap.cause == "kernel_gap"), None)
    if longest is not None:
        where = f" in step {longest.step}" if analysis.breakdown.marked else ""
        evidence.append(
            f"The longest gap is {format_duration(longest.length_ns)}{where}, {format_duration(longest.start_ns)} "
            "after the start of the recording."
        )
    return finding(
        "queued-stalls",
        f"Queued work does not start: the device idles {format_share(stalled_ns / step_ns(analysis))} of "
        f"{whole(analysis)} with launched work in its queue",
        evidence,
        "Run nvidia-smi and end other processes on the device. Then open the longest gap with lightning-perf view. If "
        "a cudaStreamWaitEvent precedes it, move both kernels to one stream. If a collective follows it, record all "
        "ranks and look for the slow one. Otherwise record again: the recorder may have lost the work in the gap.",
        saving_ns=(0.0, stalled_ns),
        step_ns=step_ns(analysis),
        model="Nothing if the recording lacks the work in the gaps, all of them if the wait can go.",
        rank=analysis.rank,
    )
