"""The rule for convolutions that convert the memory layout of their tensors."""

from __future__ import annotations

import re

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import choose_estimate, counted, device_saving_ns, each, step_ns, worth_it
from lightning_perf.trace.columns import matched_part
from lightning_perf.units import format_duration

__all__ = ["channels_last"]

# cuDNN's and MIOpen's conversions: `cudnn::ops::nchwToNhwcKernel`, `nhwcToNchwKernel`, `batched_transpose_32x32_half`.
LAYOUT_CHANGE = re.compile(r"nchwTo?Nhwc|nhwcTo?Nchw|nchw2nhwc|nhwc2nchw|batched_transpose_\d+x\d+", re.IGNORECASE)


def channels_last(analysis: RankAnalysis) -> Finding | None:
    """Find kernels that only convert between channels first and channels last.

    Model: in channels last they go away, or half of them if some operators insist on channels first.
    """
    if analysis.kernels is None:
        return None
    rows = [row for row in analysis.kernels.rows if LAYOUT_CHANGE.search(matched_part(row.name))]
    steps = max(analysis.kernels.steps, 1)
    kernel_ns = sum(row.total_ns for row in rows) / steps
    number = sum(row.calls for row in rows) / steps
    low_ns, high_ns = device_saving_ns(analysis, kernel_ns / 2, kernel_ns)
    estimate = choose_estimate(
        analysis,
        "channels-last",
        (low_ns, high_ns) if worth_it(high_ns, analysis) else None,
        "The conversions go away, or half of them if an operator insists on channels first.",
    )
    if estimate is None or not rows:
        return None
    return finding(
        "channels-last",
        f"Layout changes around convolutions: {format_duration(kernel_ns)} {each(analysis)}",
        (
            (
                f"{counted(number, 'kernel')} {each(analysis)} for conversions between channels first and channels "
                "last, which Tensor Cores need."
            ),
        ),
        "Keep model and batches in channels last: model.to(memory_format=torch.channels_last) before trainer.fit, and "
        "images = images.contiguous(memory_format=torch.channels_last) in training_step.",
        saving_ns=estimate.saving_ns,
        step_ns=step_ns(analysis),
        model=estimate.model,
        basis=estimate.basis,
        rank=analysis.rank,
    )
