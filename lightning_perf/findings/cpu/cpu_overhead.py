"""The rule for trainings on a processor that spend their steps on overhead."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.exclusions import (
    UNKNOWN_BATCHES,
    batch_can_grow,
    batches_per_epoch,
    compile_obstacle,
)
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import (
    Estimated,
    choose_estimate,
    counted,
    each,
    probed_change,
    share_of_step,
    step_ns,
    whole,
)
from lightning_perf.units import format_count, format_duration

MIN_OVERHEAD = 0.4
"""Share of overhead from which more work per call helps."""

SAVED = (0.3, 0.75)
"""Shares of the overhead that each sample saves: at least with twice the batch, at most with four times the batch.

Overhead that does not grow with the batch is halved or quartered for each sample. A part of it may grow."""


def cpu_overhead(analysis: RankAnalysis) -> Finding | None:
    """Find steps on a processor that are mostly Python and short operators.

    Model: the fixed cost of a step is divided among two to four times as many samples. The saving is for as many
    samples as a step has now. If a probe compiled the calls, and this saves more, it is the fix.
    """
    compute = analysis.host_compute
    processor = analysis.metadata.processor
    if compute is None or processor is None or not analysis.breakdown.marked or not step_ns(analysis):
        return None
    python_ns = compute.gaps_ns / compute.steps
    short_ns = compute.short_ns / compute.steps
    overhead_ns = python_ns + short_ns
    share = overhead_ns / step_ns(analysis)
    large_ns = overhead_ns if share >= MIN_OVERHEAD else None
    fixes = [_larger_batch(analysis, large_ns), _compiled(analysis), _merged(analysis, large_ns)]
    fix = max((one for one in fixes if one is not None), key=_Fix.order, default=None)
    if fix is None:
        return None
    part = f"{share_of_step(overhead_ns, analysis)} of {whole(analysis)}"
    title = f"Overhead: {part} is Python and short operators" if share >= MIN_OVERHEAD else fix.title
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
            *fix.evidence,
        ),
        fix.action,
        saving_ns=fix.estimate.saving_ns,
        step_ns=step_ns(analysis),
        model=fix.estimate.model,
        basis=fix.estimate.basis,
        rank=analysis.rank,
    )


class _Fix(NamedTuple):
    """A fix with its saving, and the title that it gives a finding without much overhead."""

    action: str
    estimate: Estimated
    title: str
    evidence: tuple[str, ...] = ()

    def order(self) -> tuple[bool, float]:
        """Return the key by which the fix to give is the largest: a probed one, with the larger saving."""
        return self.estimate.basis == "probed", sum(self.estimate.saving_ns)


def _larger_batch(analysis: RankAnalysis, overhead_ns: float | None) -> _Fix | None:
    """Return the fix of a larger batch; None if the batch is the whole data set.

    Args:
        analysis: The rank.
        overhead_ns: The overhead of a step; None if it is too small for a general range.
    """
    if not batch_can_grow(analysis):
        return None
    unknown = (UNKNOWN_BATCHES,) if batches_per_epoch(analysis) is None else ()
    estimate = choose_estimate(
        analysis,
        "batch",
        None if overhead_ns is None else (SAVED[0] * overhead_ns, SAVED[1] * overhead_ns),
        "Twice the batch saves each sample up to half of that, four times the batch up to three quarters.",
    )
    if estimate is None:
        return None
    estimate = replace(estimate, model=f"{estimate.model} The saving is for as many samples as a step has now.")
    probed = probed_change(analysis, "batch")
    if probed is not None and overhead_ns is None:
        action = f"Use DataLoader({probed.setting}), and scale the learning rate with it."
        return _Fix(action, estimate, f"Small batches: with {probed.setting}, each sample takes less time", unknown)
    action = "Give each step more work: raise batch_size two to four times and scale the learning rate with it."
    obstacle = compile_obstacle(analysis)
    if obstacle is not None:
        return _Fix(f"{action} lightning-perf tune measures it.", estimate, "", (*unknown, obstacle))
    action += " Or merge operators: model = torch.compile(model). lightning-perf tune measures both."
    return _Fix(action, estimate, "", unknown)


def _compiled(analysis: RankAnalysis) -> _Fix | None:
    """Return the fix of compiling the model, if a probe compiled its calls."""
    estimate = choose_estimate(analysis, "compile", None, "")
    if estimate is None or analysis.probe is None or compile_obstacle(analysis) is not None:
        return None
    took = format_duration(1e9 * (analysis.probe.compile_s or 0.0))
    return _Fix(
        "Merge operators: model = torch.compile(model).",
        replace(estimate, model=f"{estimate.model} Compiling took {took} here."),
        "Separate operators: compiled, the step takes less time",
    )


def _merged(analysis: RankAnalysis, overhead_ns: float | None) -> _Fix | None:
    """Return the fix of compiling the model where the batch is the whole data set. No probe measured its saving."""
    if overhead_ns is None or batch_can_grow(analysis) or compile_obstacle(analysis) is not None:
        return None
    if probed_change(analysis, "compile") is not None:
        return None
    return _Fix(
        "Merge operators: model = torch.compile(model). lightning-perf tune measures it.",
        Estimated((0.0, overhead_ns), "Merged operators need fewer calls, at best none.", "general"),
        "",
        ("The batch is the whole data set, so it cannot grow.",),
    )
