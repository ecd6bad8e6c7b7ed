"""Work stands in the device's queue and does not start."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import each, step_ns, whole, worth_it
from lightning_perf.units import format_count, format_duration, format_share

__all__ = ["queued_stalls"]

MIN_SHARE = 0.05


def queued_stalls(analysis: RankAnalysis) -> Finding | None:
    """Find long stretches in which the device idles although work was launched already.

    Neither the host nor a launch is what it waits for. A recording does not tell what is, and may lack the very work
    that ran. Model: none to all of it.
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
            f"In {format_count(gaps)} {'gap' if gaps == 1 else 'gaps'} above 100 µs {each(analysis)}, "
            f"{format_duration(stalled_ns)} together, launched work waits for something other than the host."
        )
    ]
    longest = next((gap for gap in idle.longest if gap.cause == "kernel_gap"), None)
    if longest is not None:
        where = f" in step {longest.step}" if analysis.breakdown.marked else ""
        evidence.append(
            f"The longest: {format_duration(longest.length_ns)}{where}, {format_duration(longest.start_ns)} after the "
            "begin of the recording."
        )
    return finding(
        "queued-stalls",
        f"Queued work does not start: for {format_share(stalled_ns / step_ns(analysis))} of {whole(analysis)} the "
        "device idles with launched work before it",
        evidence,
        "Look at the longest gap in the trace (lightning-perf view): the work waits for an event of another stream, a "
        "host function, another rank or machine, or another process on the device (nvidia-smi). If nothing of that "
        "ran, the recording lacks device work: of other processes, from before its begin, or lost by the recorder.",
        saving_ns=(0.0, stalled_ns),
        step_ns=step_ns(analysis),
        model="Nothing where the recording lacks work of the device, all of it where the wait can go.",
        rank=analysis.rank,
    )
