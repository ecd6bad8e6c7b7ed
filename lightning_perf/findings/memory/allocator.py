"""The rule for steps in which the host asks the driver for device memory."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import each, step_ns, whole, worth_it
from lightning_perf.units import format_duration, format_share

__all__ = ["allocator"]


def allocator(analysis: RankAnalysis) -> Finding | None:
    """Find steps that wait for ``cudaMalloc``, ``cudaFree`` or their like.

    PyTorch's allocator keeps its memory, so a steady training calls neither. Model: all of the exposed time goes away
    once memory has settled, or half of it if batches still grow.
    """
    row = analysis.breakdown.category("runtime_alloc")
    spent_ns = row.mean_ns or 0.0
    if not analysis.breakdown.has_device or not worth_it(spent_ns, analysis):
        return None
    return finding(
        "allocator",
        f"Allocation: the host asks the driver for memory in {format_share(row.share)} of {whole(analysis)}",
        (
            (
                f"Calls that allocate or free device memory take {format_duration(spent_ns)} {each(analysis)} while "
                "the device idles. In a settled run PyTorch's allocator makes no such calls."
            ),
        ),
        "If you recorded the first steps, record later ones: PerfCallback(skip_first=20). Otherwise memory is short or "
        "fragmented: set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF in older releases), keep "
        "batch shapes constant, and remove torch.cuda.empty_cache().",
        saving_ns=(spent_ns / 2, spent_ns),
        step_ns=step_ns(analysis),
        model="These calls end once memory has settled. Half of them stay if shapes keep changing.",
        rank=analysis.rank,
    )
