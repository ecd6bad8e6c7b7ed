"""Mixed precision spends time on casts that need not be."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import device_saving_ns, each, step_ns, worth_it
from lightning_perf.units import format_count, format_duration, format_share

__all__ = ["autocast_tax"]


def autocast_tax(analysis: RankAnalysis) -> Finding | None:
    """Find casts of autocast that are made again and again.

    Model: weights cast more than once a step are cast once with autocast's cache; tensors cast to FP32 and back stay in
    16 bits where the operator between allows it, which half of them may.
    """
    tax = analysis.autocast
    if tax is None or not tax.on_device or tax.missing is not None:
        return None
    steps = max(tax.steps, 1)
    repeated_ns, round_trip_ns = tax.repeated_weight_ns / steps, tax.round_trip_ns / steps
    low_ns, high_ns = device_saving_ns(analysis, repeated_ns + round_trip_ns / 2, repeated_ns + round_trip_ns)
    if not worth_it(high_ns, analysis):
        return None
    evidence, actions = [], []
    if tax.repeated_weight_casts:
        evidence.append(
            f"{format_count(tax.repeated_weight_casts / steps)} casts {each(analysis)} cast a weight again, "
            f"{format_duration(repeated_ns)}."
        )
        actions.append(
            "Keep autocast's weight cache on: torch.autocast(…, cache_enabled=True) around the whole forward pass."
        )
    if tax.round_trips:
        evidence.append(
            f"{format_count(tax.round_trips / steps)} tensors {each(analysis)} go to FP32 and back, "
            f"{format_duration(round_trip_ns)}."
        )
        actions.append(
            "Avoid operators that autocast keeps in FP32 between 16-bit ones, or let torch.compile fuse the casts."
        )
    return finding(
        "autocast-tax",
        f"Casts between floating types take {format_share(tax.share)} of device compute",
        evidence,
        " ".join(actions),
        saving_ns=(low_ns, high_ns),
        step_ns=step_ns(analysis),
        model="Repeated casts of weights go away, and between half and all of the round trips.",
        rank=analysis.rank,
    )
