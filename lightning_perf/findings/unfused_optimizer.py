"""The optimizer updates each parameter with kernels of its own."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.amdahl import each, step_ns, whole, worth_it
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.units import format_count, format_duration

__all__ = ["unfused_optimizer"]

FUSED = ("Adagrad", "Adam", "AdamW", "SGD")
"""Optimizers of ``torch.optim`` with ``fused=True`` (https://docs.pytorch.org/docs/stable/optim.html#algorithms)."""

REMAINS = {"loop": (0.5, 0.1), "foreach": (0.8, 0.5)}
"""What remains of the optimizer's exposed time, at most and at least: from thousands of launches to tens."""


def unfused_optimizer(analysis: RankAnalysis) -> Finding | None:
    """Find optimizers that a fused implementation would speed up.

    Model: of the step time that the optimizer phase has, a tenth to a half remains where it looped over parameters,
    and a half to four fifths where it grouped them (foreach); the device time of the update itself stays.
    """
    optimizer = analysis.optimizer
    if optimizer is None or optimizer.implementation not in REMAINS:
        return None
    if not analysis.breakdown.has_device or optimizer.name not in FUSED:
        return None
    phase_ns = analysis.phases.phase("optimizer").mean_ns
    steps = max(optimizer.steps, 1)
    shrinks_ns = max(0.0, phase_ns - optimizer.device_ns / steps / 2)
    most, least = REMAINS[optimizer.implementation]
    high_ns = shrinks_ns * (1 - least)
    if not worth_it(high_ns, analysis):
        return None
    how = "in a loop over parameters" if optimizer.implementation == "loop" else "in groups of parameters (foreach)"
    return finding(
        "unfused-optimizer",
        f"Unfused optimizer: {optimizer.name} takes {format_duration(phase_ns)} of {whole(analysis)}",
        (
            (
                f"It updates {how}: {format_count(optimizer.launches / steps)} launches {each(analysis)}, and "
                f"{format_duration(optimizer.host_ns / steps)} on the host for "
                f"{format_duration(optimizer.device_ns / steps)} of work on the device."
            ),
        ),
        f"Use torch.optim.{optimizer.name}(…, fused=True); under 16-mixed it excludes gradient clipping.",
        saving_ns=(shrinks_ns * (1 - most), high_ns),
        step_ns=step_ns(analysis),
        model=f"Of the phase remains {round(100 * least)} to {round(100 * most)} %, and what the device needs.",
        rank=analysis.rank,
    )
