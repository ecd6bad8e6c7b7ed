"""The optimizer updates each parameter with operators of its own, on the device or on the processor."""

from __future__ import annotations

from lightning_perf.analysis.host.host_compute import SHORT_NS
from lightning_perf.analysis.model.optimizers import OptimizerSteps
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import each, step_ns, whole, worth_it
from lightning_perf.units import format_count, format_duration

__all__ = ["unfused_optimizer"]

FUSED = ("Adagrad", "Adam", "AdamW", "SGD")
"""Optimizers of ``torch.optim`` with ``fused=True`` (https://docs.pytorch.org/docs/stable/optim.html#algorithms)."""

REMAINS = {"loop": (0.5, 0.1), "foreach": (0.8, 0.5)}
"""What remains of the optimizer's exposed time, at most and at least: from thousands of launches to tens."""

REMAINS_ON_PROCESSOR = {"Adagrad": (0.6, 0.25), "Adam": (0.6, 0.12), "AdamW": (0.6, 0.12), "SGD": (0.8, 0.25)}
"""What remains of a loop over parameters on a processor, at most and at least.

Every operator of the loop reads and writes whole parameters, some into fresh memory; a fused update does so once.
``benchmarks/results/fused_optimizer.md`` has what was measured: Adam and AdamW 0.15 to 0.44, Adagrad 0.37 to 0.47, SGD
with momentum or weight decay 0.27 to 0.77. A loop that was recorded may have been slower by a third than that of the
training's later steps, whose fresh memory no longer has to be cleared.
"""


def unfused_optimizer(analysis: RankAnalysis) -> Finding | None:
    """Find optimizers that a fused implementation would speed up."""
    optimizer = analysis.optimizer
    if optimizer is None or optimizer.name not in FUSED:
        return None
    if analysis.breakdown.has_device:
        return _on_device(analysis, optimizer)
    return _on_processor(analysis, optimizer) if analysis.host_compute is not None else None


def _on_device(analysis: RankAnalysis, optimizer: OptimizerSteps) -> Finding | None:
    """Model: of the step time that the optimizer phase has, a tenth to a half remains where it looped over parameters.

    A half to four fifths remains where it grouped them (foreach); the device time of the update itself stays.
    """
    if optimizer.implementation not in REMAINS:
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


def _on_processor(analysis: RankAnalysis, optimizer: OptimizerSteps) -> Finding | None:
    """Model: a fused update reads and writes each parameter once, where a loop's operators do so one after another.

    Of tiny parameters, whose operators hardly compute, it perhaps wins nothing: it divides even those among threads.
    """
    if optimizer.implementation != "loop" or not optimizer.operators:
        return None
    if optimizer.name == "SGD" and not {"aten::mul_", "aten::add"} & set(optimizer.operator_names):
        return None  # neither momentum nor weight decay: one operator a parameter as it is
    mean_ns = optimizer.host_ns / max(optimizer.steps, 1)
    most, least = REMAINS_ON_PROCESSOR[optimizer.name]
    processor = analysis.metadata.processor
    alone = processor is not None and processor.threads == 1
    if optimizer.host_ns < SHORT_NS * optimizer.operators and not alone:
        most = 1.0
    if not worth_it(mean_ns * (1 - least), analysis):
        return None
    return finding(
        "unfused-optimizer",
        f"Unfused optimizer: {optimizer.name} takes {format_duration(mean_ns)} of {whole(analysis)}",
        (
            (
                f"It updates in a loop over parameters: {format_count(optimizer.operators / max(optimizer.steps, 1))} "
                f"operators {each(analysis)}, each of which reads and writes a whole parameter."
            ),
        ),
        f"Use torch.optim.{optimizer.name}(…, fused=True).",
        saving_ns=(mean_ns * (1 - most), mean_ns * (1 - least)),
        step_ns=step_ns(analysis),
        model=f"Of the update remains {round(100 * least)} to {round(100 * most)} %.",
        rank=analysis.rank,
    )
