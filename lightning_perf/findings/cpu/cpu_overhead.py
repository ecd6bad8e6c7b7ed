"""A training on the processor spends its steps on calling operators, not on computing."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import each, share_of_step, step_ns, whole
from lightning_perf.units import format_count, format_duration

__all__ = ["cpu_overhead"]

MIN_OVERHEAD = 0.4
"""From this part of the step on, more work a call is what helps."""

SAVED = (0.3, 0.75)
"""Parts of the overhead that a sample is spared by twice the batch, at least, and by four times the batch, at most.

What does not grow with the batch is halved and quartered for each sample; a part of it may grow after all."""


def cpu_overhead(analysis: RankAnalysis) -> Finding | None:
    """Find steps on the processor that are mostly Python and short operators.

    Model: what a step costs however large its batch is spread over two to four times as many samples. The saving is
    for the samples of a step as it was.
    """
    compute = analysis.host_compute
    processor = analysis.metadata.processor
    if compute is None or processor is None or not analysis.breakdown.marked or not step_ns(analysis):
        return None
    python_ns = compute.gaps_ns / compute.steps
    short_ns = compute.short_ns / compute.steps
    overhead_ns = python_ns + short_ns
    share = overhead_ns / step_ns(analysis)
    if share < MIN_OVERHEAD:
        return None
    part = f"{share_of_step(overhead_ns, analysis)} of {whole(analysis)}"
    return finding(
        "cpu-overhead",
        f"Too little to compute: {part} is Python and short operators",
        (
            (
                f"{format_count(compute.short_calls / compute.steps)} of {format_count(compute.calls / compute.steps)} "
                f"operators {each(analysis)} are shorter than 10 µs, {format_duration(short_ns)} together; Python and "
                f"the framework around them take {format_duration(python_ns)}."
            ),
        ),
        "Give each step more work: raise batch_size two to four times and scale the learning rate with it, or try "
        "torch.compile(model); lightning-perf tune measures both.",
        saving_ns=(SAVED[0] * overhead_ns, SAVED[1] * overhead_ns),
        step_ns=step_ns(analysis),
        model="Twice the batch saves each sample up to half of that, four times the batch up to three quarters; the "
        "saving is for as many samples as a step has now.",
        rank=analysis.rank,
    )
