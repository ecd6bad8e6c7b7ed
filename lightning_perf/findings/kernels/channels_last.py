"""Convolutions change the memory layout of their tensors back and forth."""

from __future__ import annotations

import re

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import device_saving_ns, each, step_ns, worth_it
from lightning_perf.units import format_count, format_duration

__all__ = ["channels_last"]

# cuDNN's and MIOpen's conversions: `cudnn::ops::nchwToNhwcKernel`, `nhwcToNchwKernel`, `batched_transpose_32x32_half`.
LAYOUT_CHANGE = re.compile(r"nchwTo?Nhwc|nhwcTo?Nchw|nchw2nhwc|nhwc2nchw|batched_transpose_\d+x\d+", re.IGNORECASE)


def channels_last(analysis: RankAnalysis) -> Finding | None:
    """Find kernels that only change the layout between channels first and channels last.

    Model: with everything in channels last they go away; half of them where some operators insist on the other layout.
    """
    if analysis.kernels is None:
        return None
    rows = [row for row in analysis.kernels.rows if LAYOUT_CHANGE.search(row.name)]
    steps = max(analysis.kernels.steps, 1)
    kernel_ns = sum(row.total_ns for row in rows) / steps
    number = format_count(sum(row.calls for row in rows) / steps)
    low_ns, high_ns = device_saving_ns(analysis, kernel_ns / 2, kernel_ns)
    if not worth_it(high_ns, analysis):
        return None
    return finding(
        "channels-last",
        f"Layout changes around convolutions: {format_duration(kernel_ns)} {each(analysis)}",
        (
            (
                f"{number} kernels {each(analysis)} convert from channels "
                "first to channels last or back, which Tensor Cores want."
            ),
        ),
        "Keep model and batches in channels last: model.to(memory_format=torch.channels_last), and "
        "x = x.contiguous(memory_format=torch.channels_last) for the input.",
        saving_ns=(low_ns, high_ns),
        step_ns=step_ns(analysis),
        model="The conversions go away; half of them where an operator insists on channels first.",
        rank=analysis.rank,
    )
