"""The rule for trainings on a processor that spend their steps on overhead."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import choose_estimate, counted, each, probed_change, share_of_step, step_ns, whole
from lightning_perf.units import format_count, format_duration

__all__ = ["cpu_overhead"]

MIN_OVERHEAD = 0.4
"""Share of overhead from which more work per call helps."""

SAVED = (0.3, 0.75)
"""Shares of the overhead that each sample saves: at least with twice the batch, at most with four times the batch.

Overhead that does not grow with the batch is halved or quartered for each sample. A part of it may grow."""


def cpu_overhead(analysis: RankAnalysis) -> Finding | None:
    """Find steps on a processor that are mostly Python and short operators.

    Model: the fixed cost of a step is divided among two to four times as many samples. The saving is for as many
    samples as a step has now.
    """
    compute = analysis.host_compute
    processor = analysis.metadata.processor
    if compute is None or processor is None or not analysis.breakdown.marked or not step_ns(analysis):
        return None
    python_ns = compute.gaps_ns / compute.steps
    short_ns = compute.short_ns / compute.steps
    overhead_ns = python_ns + short_ns
    share = overhead_ns / step_ns(analysis)
    estimate = choose_estimate(
        analysis,
        "batch",
        (SAVED[0] * overhead_ns, SAVED[1] * overhead_ns) if share >= MIN_OVERHEAD else None,
        "Twice the batch saves each sample up to half of that, four times the batch up to three quarters.",
    )
    if estimate is None:
        return None
    part = f"{share_of_step(overhead_ns, analysis)} of {whole(analysis)}"
    title = f"Overhead: {part} is Python and short operators"
    action = (
        "Give each step more work: raise batch_size two to four times and scale the learning rate with it. Or merge "
        "operators: model = torch.compile(model). lightning-perf tune measures both."
    )
    probed = probed_change(analysis, "batch")
    if probed is not None and share < MIN_OVERHEAD:
        title = f"Small batches: with {probed.setting}, each sample takes less time"
        action = f"Use DataLoader({probed.setting}), and scale the learning rate with it."
    return finding(
        "cpu-overhead",
        title,
        (
            (
                f"{format_count(compute.short_calls / compute.steps)} of "
                f"{counted(compute.calls / compute.steps, 'operator')} {each(analysis)} are shorter than 10 µs, "
                f"{format_duration(short_ns)} together. Python and the framework around them take "
                f"{format_duration(python_ns)}."
            ),
        ),
        action,
        saving_ns=estimate.saving_ns,
        step_ns=step_ns(analysis),
        model=f"{estimate.model} The saving is for as many samples as a step has now.",
        basis=estimate.basis,
        rank=analysis.rank,
    )
