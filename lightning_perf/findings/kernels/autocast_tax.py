"""The rule for avoidable casts in mixed precision."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.exclusions import compile_obstacle
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import counted, device_saving_ns, each, step_ns, worth_it
from lightning_perf.units import format_duration, format_share

__all__ = ["autocast_tax"]


def autocast_tax(analysis: RankAnalysis) -> Finding | None:
    """Find repeated casts of autocast.

    Model: with autocast's cache, a weight is cast once per step. Half to all of the tensors that are cast to FP32 and
    back can stay in 16 bits.
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
            f"{counted(tax.repeated_weight_casts / steps, 'cast')} {each(analysis)} of a weight that was already cast "
            f"take {format_duration(repeated_ns)}."
        )
        actions.append(
            "Lightning turns autocast's weight cache off. Let the callback set the precision, which turns it on: "
            f'Trainer(callbacks=[PerfCallback(precision="{_precision(analysis)}")]) without precision in the Trainer. '
            "In your own loop, put torch.autocast(…, cache_enabled=True) around the whole forward pass."
        )
    if tax.round_trips:
        evidence.append(
            f"{counted(tax.round_trips / steps, 'tensor')} {each(analysis)} cast to FP32 and back: "
            f"{format_duration(round_trip_ns)}."
        )
        avoid = "void operators that autocast keeps in FP32 between 16-bit ones."
        can_fuse = compile_obstacle(analysis) is None
        actions.append(f"Fuse the casts: model = torch.compile(model). Or a{avoid}" if can_fuse else f"A{avoid}")
    return finding(
        "autocast-tax",
        f"Avoidable casts: casts between floating types take {format_share(tax.share)} of device compute",
        evidence,
        " ".join(actions),
        saving_ns=(low_ns, high_ns),
        step_ns=step_ns(analysis),
        model="All repeated casts of weights go away, and half to all of the round trips.",
        rank=analysis.rank,
    )


def _precision(analysis: RankAnalysis) -> str:
    """Return the precision that the recorded casts belong to."""
    casts = analysis.autocast.casts if analysis.autocast is not None else ()
    count = {kind: sum(cast.count for cast in casts if cast.target == kind) for kind in ("fp16", "bf16")}
    return "16-mixed" if count["fp16"] > count["bf16"] else "bf16-mixed"
