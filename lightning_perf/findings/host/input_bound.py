"""The rule for training threads that wait for their batches."""

from __future__ import annotations

from lightning_perf.analysis.host.user_code import function_text
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.host.loader_advice import advise
from lightning_perf.findings.savings import whole
from lightning_perf.units import format_duration, format_share

__all__ = ["input_bound"]

MIN_SHARE = 0.05
"""Waits below this share of the step are not reported (XProf's threshold for a moderate input problem)."""

OPERATOR_SHARE = 0.5
"""Share of operators in the fetch from which their work on tensors takes the time."""


def input_bound(
    analysis: RankAnalysis, *, wait_ns: float | None = None, step_ns: float | None = None
) -> Finding | None:
    """Find steps that wait for input, and whether the number of workers or the cost of a batch is the reason.

    Only waits that no device work hides count. Model: if batches are made while the device computes, the wait ends, but
    a step is never shorter than the loader needs for its batch. Sending batches between processes takes the training
    thread time. On a processor, cold caches after the wait may cost another tenth of it. If workers share cores with
    the training process, half of the wait may stay.

    Args:
        analysis: The rank.
        wait_ns: The wait per step from the step log of the run, which covers more steps than the recording.
        step_ns: The step time that belongs to it.
    """
    breakdown, loading = analysis.breakdown, analysis.loading
    if wait_ns is None or step_ns is None:
        wait_ns, step_ns = breakdown.category("input").mean_ns, breakdown.wall.mean_ns
    if loading is None or breakdown.truncated or not wait_ns or not step_ns or wait_ns < MIN_SHARE * step_ns:
        return None
    advice = advise(analysis, wait_ns, step_ns)
    evidence = [f"The training thread waits {format_duration(wait_ns)} of {format_duration(step_ns)} for its batch."]
    if loading.fetch_ns and not _is_special(analysis):
        evidence.append(_who(loading.loader))
        share = loading.operator_ns / loading.fetch_ns
        if share >= OPERATOR_SHARE:
            evidence.append(f"Operators on tensors fill {format_share(share)} of the fetch on the training thread.")
    evidence += _where(analysis)
    evidence += advice.evidence
    return finding(
        "input-bound",
        f"Input-bound: {format_share(wait_ns / step_ns)} of {whole(analysis)} waits for data",
        evidence,
        advice.action,
        saving_ns=advice.saving_ns,
        step_ns=step_ns,
        model=advice.model,
        rank=analysis.rank,
    )


def _where(analysis: RankAnalysis) -> list[str]:
    """Return a sentence about the code that makes the batches, as far as the recording names it."""
    facts = analysis.metadata.loader
    fetch = analysis.pauses.phase("fetch") if analysis.pauses is not None else None
    if facts is not None and facts.workers:
        return []
    if fetch is not None and fetch.function is not None:
        return [f"Most of the fetch is in {function_text(fetch.function)}."]
    if facts is not None and facts.dataset and facts.collate:
        return [f"Batches come from the dataset {facts.dataset} and the collate_fn {facts.collate}."]
    return []


def _who(loader: str | None) -> str:
    if loader == "in_process":
        return (
            "The DataLoader makes batches in the training process (num_workers=0), so loading and training alternate."
        )
    if loader == "workers":
        return "The DataLoader has worker processes, but they are slower than the step."
    return "The recording does not show whether the loader has worker processes."


def _is_special(analysis: RankAnalysis) -> bool:
    """Return whether the advice itself says where the batches come from."""
    facts = analysis.metadata.loader
    return facts is not None and facts.kind == "other"
