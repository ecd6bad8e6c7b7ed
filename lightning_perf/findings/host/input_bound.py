"""The training thread waits for its batches."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.host.loader_advice import advise
from lightning_perf.findings.savings import whole
from lightning_perf.units import format_duration, format_share

__all__ = ["input_bound"]

MIN_SHARE = 0.05
"""Waiting below this part of the step is not worth a change (XProf's line for a moderate input problem)."""

OPERATOR_SHARE = 0.5
"""Operators filling more than this part of the fetch: the work on tensors there is what takes the time."""

COLD_SHARE = 0.1
"""Up to this part of the wait is saved besides where the processor itself trains: after a wait its caches are cold (1
to 6 % measured, benchmarks/results/planted.md)."""


def input_bound(
    analysis: RankAnalysis, *, wait_ns: float | None = None, step_ns: float | None = None
) -> Finding | None:
    """Find steps that wait for input, and say whether workers, or the work on a batch, is the reason.

    Only the wait that nothing on the device hides counts. Model: with batches made while the device computes, the wait
    ends, except that a step cannot be shorter than making its batch takes the loader; on the processor, caches that it
    leaves cold may cost as much as a tenth of it besides. Cores shared with the training process may leave half of it.

    Args:
        analysis: The rank.
        wait_ns: The wait per step, where the step log of the run has measured it in more steps than the recording.
        step_ns: The step time that belongs to it.
    """
    breakdown, loading = analysis.breakdown, analysis.loading
    if wait_ns is None or step_ns is None:
        wait_ns, step_ns = breakdown.category("input").mean_ns, breakdown.wall.mean_ns
    if loading is None or breakdown.truncated or not wait_ns or not step_ns or wait_ns < MIN_SHARE * step_ns:
        return None
    low_ns = wait_ns / 2
    if loading.loader == "workers":
        # The loader's own period is the step that waits for it; twice the workers halve it at best.
        best_ns = min(wait_ns, step_ns / 2)
        low_ns = best_ns / 2
        model = "Twice the workers halve the time between batches; at least half of that where cores allow it."
    else:
        best_ns = wait_ns
        model = "Batches made while the device computes leave no wait; half of it where workers compete for cores."
        if not breakdown.has_device:
            best_ns = min(wait_ns * (1 + COLD_SHARE), step_ns)
            model = (
                "Batches made by workers leave no wait, and no cold caches after it (up to a tenth more); half of the "
                "wait stays where they compete for cores."
            )
    advice = advise(analysis, wait_ns, step_ns)
    if advice.may_win_nothing:
        low_ns = 0.0
    evidence = [f"The training thread waits {format_duration(wait_ns)} of {format_duration(step_ns)} for its batch."]
    if loading.fetch_ns and not _is_special(analysis):
        evidence.append(_who(loading.loader))
        share = loading.operator_ns / loading.fetch_ns
        if share >= OPERATOR_SHARE:
            evidence.append(f"Operators on tensors fill {format_share(share)} of the fetch on the training thread.")
    evidence += advice.evidence
    return finding(
        "input-bound",
        f"Input-bound: {format_share(wait_ns / step_ns)} of {whole(analysis)} waits for data",
        evidence,
        advice.action,
        saving_ns=(low_ns, best_ns),
        step_ns=step_ns,
        model=advice.model or model,
        rank=analysis.rank,
    )


def _who(loader: str | None) -> str:
    if loader == "in_process":
        return (
            "The DataLoader makes batches in the training process (num_workers=0), so loading and training take turns."
        )
    if loader == "workers":
        return "The DataLoader has worker processes, but they make batches more slowly than the step uses them."
    return "The recording does not tell whether the loader has worker processes."


def _is_special(analysis: RankAnalysis) -> bool:
    """Whether the advice says itself where the batches come from."""
    facts = analysis.metadata.loader
    return facts is not None and facts.kind == "other"
