"""Rules about kernels that another setting avoids: layout changes, cuDNN's measurements, optimizers in a loop."""

from __future__ import annotations

import re

from lightning_perf.analysis.host.host_compute import SHORT_NS
from lightning_perf.analysis.host.sync_points import SyncPoint
from lightning_perf.analysis.model.optimizers import OptimizerSteps
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Problem, SavingRange
from lightning_perf.findings.rules import rule
from lightning_perf.findings.savings import (
    choose_saving,
    counted,
    device_saving_ns,
    each,
    in_phases,
    processor_of,
    step_ns,
    whole,
    worth_it,
)
from lightning_perf.trace.columns import matched_part
from lightning_perf.units import format_duration

# cuDNN's and MIOpen's conversions: `cudnn::ops::nchwToNhwcKernel`, `nhwcToNchwKernel`, `batched_transpose_32x32_half`.
LAYOUT_CHANGE = re.compile(r"nchwTo?Nhwc|nhwcTo?Nchw|nchw2nhwc|nhwc2nchw|batched_transpose_\d+x\d+", re.IGNORECASE)


@rule("channels-last")
def channels_last(analysis: RankAnalysis) -> Problem | None:
    """Find kernels that only convert between channels first and channels last.

    Model: in channels last they go away, or half of them if some operators insist on channels first.
    """
    if analysis.kernels is None:
        return None
    rows = [row for row in analysis.kernels.rows if LAYOUT_CHANGE.search(matched_part(row.name))]
    steps = max(analysis.kernels.steps, 1)
    kernel_ns = sum(row.total_ns for row in rows) / steps
    number = sum(row.calls for row in rows) / steps
    saving = choose_saving(
        analysis,
        "channels-last",
        device_saving_ns(analysis, kernel_ns / 2, kernel_ns),
        "The conversions go away, or half of them if an operator insists on channels first.",
    )
    if saving is None or not rows:
        return None
    return Problem(
        f"Layout changes around convolutions: {format_duration(kernel_ns)} {each(analysis)}",
        f"{counted(number, 'kernel')} {each(analysis)} for conversions between channels first and channels "
        "last, which Tensor Cores need.",
        "Keep model and batches in channels last: model.to(memory_format=torch.channels_last) before trainer.fit, and "
        "images = images.contiguous(memory_format=torch.channels_last) in training_step.",
        saving,
    )


def is_benchmarking(point: SyncPoint) -> bool:
    """Return whether a wait is cuDNN's timing of an algorithm: an event synchronization inside a convolution."""
    return "EventSynchronize" in point.call and "conv" in (point.operator or "").lower()


@rule("cudnn-benchmark", part=in_phases("forward", "backward"))
def cudnn_benchmark(analysis: RankAnalysis) -> Problem | None:
    """Find steps in which ``torch.backends.cudnn.benchmark`` measures algorithms.

    It does so once per shape, so with fixed shapes it is over after the first step. Model: the waits of the host for
    these measurements go away, and up to as much again for the work that is measured.
    """
    syncs = analysis.sync_points
    if syncs is None:
        return None
    points = [point for point in syncs.points if is_benchmarking(point)]
    steps = max(syncs.steps, 1)
    wait_ns = sum(point.wait_ns for point in points) / steps
    if not worth_it(wait_ns, analysis):
        return None
    calls = sum(point.calls for point in points)
    return Problem(
        "cuDNN measures algorithms during the recorded steps",
        f"The host waits for {counted(calls, 'measurement')} inside convolutions, "
        f"{format_duration(wait_ns * steps)} in total.",
        "If you recorded the first steps, record later ones: PerfCallback(skip_first=20). If shapes change from batch "
        "to batch, turn the measurements off: Trainer(benchmark=False).",
        SavingRange(
            (wait_ns, min(2 * wait_ns, step_ns(analysis))),
            "The waits for measurements go away, and up to as much again for the measured work.",
        ),
    )


FUSED = ("Adagrad", "Adam", "AdamW", "SGD")
"""Optimizers of ``torch.optim`` with ``fused=True`` (https://docs.pytorch.org/docs/stable/optim.html#algorithms)."""

REMAINS_ON_DEVICE = {"loop": (0.5, 0.1), "foreach": (0.8, 0.5)}
"""Share of the optimizer's exposed time that remains, at most and at least: thousands of launches become tens."""

REMAINS_ON_PROCESSOR = {"Adagrad": (0.6, 0.25), "Adam": (0.6, 0.12), "AdamW": (0.6, 0.12), "SGD": (0.8, 0.25)}
"""Share of a loop over parameters on a processor that remains, at most and at least.

Every operator of the loop reads and writes whole parameters, some into fresh memory. A fused update does so once.
Measured (``benchmarks/results/fused_optimizer.md``): Adam and AdamW 0.15 to 0.44, Adagrad 0.37 to 0.47, SGD with
momentum or weight decay 0.27 to 0.77. A recorded loop may be slower by a third than in later steps of the training, in
which the system no longer has to clear fresh memory.
"""


@rule("unfused-optimizer", part=in_phases("optimizer"))
def unfused_optimizer(analysis: RankAnalysis) -> Problem | None:
    """Find optimizers that a fused implementation would speed up."""
    optimizer = analysis.optimizer
    if optimizer is None or optimizer.name not in FUSED:
        return None
    if analysis.breakdown.has_device:
        return _on_device(analysis, optimizer)
    return _on_processor(analysis, optimizer) if analysis.host_compute is not None else None


def _on_device(analysis: RankAnalysis, optimizer: OptimizerSteps) -> Problem | None:
    """Find an update on a device.

    Model: a tenth to a half of the optimizer phase remains of a loop over parameters, and a half to four fifths of an
    update in groups (foreach). The device time of the update itself stays.
    """
    if optimizer.implementation not in REMAINS_ON_DEVICE:
        return None
    phase_ns = analysis.phases.phase("optimizer").mean_ns
    steps = max(optimizer.steps, 1)
    shrinks_ns = max(0.0, phase_ns - optimizer.device_ns / steps / 2)
    most, least = REMAINS_ON_DEVICE[optimizer.implementation]
    saving = choose_saving(
        analysis,
        "fused-optimizer",
        (shrinks_ns * (1 - most), shrinks_ns * (1 - least)),
        f"{round(100 * least)} to {round(100 * most)} % of the phase remains, plus the work of the device.",
    )
    if saving is None:
        return None
    how = "in a loop over parameters" if optimizer.implementation == "loop" else "in groups of parameters (foreach)"
    return Problem(
        f"Unfused optimizer: {optimizer.name} takes {format_duration(phase_ns)} of {whole(analysis)}",
        f"It updates {how}: {counted(optimizer.launches / steps, 'launch', 'launches')} {each(analysis)}, "
        f"{format_duration(optimizer.host_ns / steps)} on the host for "
        f"{format_duration(optimizer.device_ns / steps)} of work on the device.",
        f"Use torch.optim.{optimizer.name}(…, fused=True). In mixed precision it excludes gradient_clip_val.",
        saving,
    )


def _on_processor(analysis: RankAnalysis, optimizer: OptimizerSteps) -> Problem | None:
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
    if optimizer.host_ns < SHORT_NS * optimizer.operators and processor_of(analysis).threads != 1:
        most = 1.0
    saving = choose_saving(
        analysis,
        "fused-optimizer",
        (mean_ns * (1 - most), mean_ns * (1 - least)),
        f"{round(100 * least)} to {round(100 * most)} % of the update remains.",
    )
    if saving is None:
        return None
    operators = optimizer.operators / max(optimizer.steps, 1)
    return Problem(
        f"Unfused optimizer: {optimizer.name} takes {format_duration(mean_ns)} of {whole(analysis)}",
        f"It updates in a loop over parameters: {counted(operators, 'operator')} {each(analysis)}, and each "
        "reads and writes a whole parameter.",
        f"Use torch.optim.{optimizer.name}(…, fused=True).",
        saving,
    )
