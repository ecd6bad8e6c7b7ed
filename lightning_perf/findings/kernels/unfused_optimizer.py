"""The rule for optimizers that update each parameter with separate operators."""

from __future__ import annotations

from lightning_perf.analysis.host.host_compute import SHORT_NS
from lightning_perf.analysis.model.optimizers import OptimizerSteps
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import choose_estimate, counted, each, step_ns, whole, worth_it
from lightning_perf.units import format_duration

__all__ = ["unfused_optimizer"]

FUSED = ("Adagrad", "Adam", "AdamW", "SGD")
"""Optimizers of ``torch.optim`` with ``fused=True`` (https://docs.pytorch.org/docs/stable/optim.html#algorithms)."""

REMAINS = {"loop": (0.5, 0.1), "foreach": (0.8, 0.5)}
"""Share of the optimizer's exposed time that remains, at most and at least: thousands of launches become tens."""

REMAINS_ON_PROCESSOR = {"Adagrad": (0.6, 0.25), "Adam": (0.6, 0.12), "AdamW": (0.6, 0.12), "SGD": (0.8, 0.25)}
"""Share of a loop over parameters on a processor that remains, at most and at least.

Every operator of the loop reads and writes whole parameters, some into fresh memory. A fused update does so once.
Measured (``benchmarks/results/fused_optimizer.md``): Adam and AdamW 0.15 to 0.44, Adagrad 0.37 to 0.47, SGD with
momentum or weight decay 0.27 to 0.77. A recorded loop may be slower by a third than in later steps of the training, in
which the system no longer has to clear fresh memory.
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
    """Find an update on a device.

    Model: a tenth to a half of the optimizer phase remains of a loop over parameters, and a half to four fifths of an
    update in groups (foreach). The device time of the update itself stays.
    """
    if optimizer.implementation not in REMAINS:
        return None
    phase_ns = analysis.phases.phase("optimizer").mean_ns
    steps = max(optimizer.steps, 1)
    shrinks_ns = max(0.0, phase_ns - optimizer.device_ns / steps / 2)
    most, least = REMAINS[optimizer.implementation]
    high_ns = shrinks_ns * (1 - least)
    estimate = choose_estimate(
        analysis,
        "fused-optimizer",
        (shrinks_ns * (1 - most), high_ns) if worth_it(high_ns, analysis) else None,
        f"{round(100 * least)} to {round(100 * most)} % of the phase remains, plus the work of the device.",
    )
    if estimate is None:
        return None
    how = "in a loop over parameters" if optimizer.implementation == "loop" else "in groups of parameters (foreach)"
    return finding(
        "unfused-optimizer",
        f"Unfused optimizer: {optimizer.name} takes {format_duration(phase_ns)} of {whole(analysis)}",
        (
            (
                f"It updates {how}: {counted(optimizer.launches / steps, 'launch', 'launches')} {each(analysis)}, "
                f"{format_duration(optimizer.host_ns / steps)} on the host for "
                f"{format_duration(optimizer.device_ns / steps)} of work on the device."
            ),
        ),
        f"Use torch.optim.{optimizer.name}(…, fused=True). In mixed precision it excludes gradient_clip_val.",
        saving_ns=estimate.saving_ns,
        step_ns=step_ns(analysis),
        model=estimate.model,
        basis=estimate.basis,
        rank=analysis.rank,
    )


def _on_processor(analysis: RankAnalysis, optimizer: OptimizerSteps) -> Finding | None:
    """Find an update on a processor.

    Model: a fused update reads and writes each parameter once, and a loop does so in each of its operators. For tiny
    parameters it may save nothing, since it divides even those among threads.
    """
    if optimizer.implementation != "loop" or not optimizer.operators:
        return None
    if optimizer.name == "SGD" and not {"aten::mul_", "aten::add"} & set(optimizer.operator_names):
        return None  # neither momentum nor weight decay: it runs one operator per parameter already
    mean_ns = optimizer.host_ns / max(optimizer.steps, 1)
    most, least = REMAINS_ON_PROCESSOR[optimizer.name]
    processor = analysis.metadata.processor
    alone = processor is not None and processor.threads == 1
    if optimizer.host_ns < SHORT_NS * optimizer.operators and not alone:
        most = 1.0
    estimate = choose_estimate(
        analysis,
        "fused-optimizer",
        (mean_ns * (1 - most), mean_ns * (1 - least)) if worth_it(mean_ns * (1 - least), analysis) else None,
        f"{round(100 * least)} to {round(100 * most)} % of the update remains.",
    )
    if estimate is None:
        return None
    operators = optimizer.operators / max(optimizer.steps, 1)
    return finding(
        "unfused-optimizer",
        f"Unfused optimizer: {optimizer.name} takes {format_duration(mean_ns)} of {whole(analysis)}",
        (
            (
                f"It updates in a loop over parameters: {counted(operators, 'operator')} {each(analysis)}, and each "
                "reads and writes a whole parameter."
            ),
        ),
        f"Use torch.optim.{optimizer.name}(…, fused=True).",
        saving_ns=estimate.saving_ns,
        step_ns=step_ns(analysis),
        model=estimate.model,
        basis=estimate.basis,
        rank=analysis.rank,
    )
