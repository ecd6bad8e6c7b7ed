"""The host asks the driver for device memory in the middle of steps."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import each, step_ns, whole, worth_it
from lightning_perf.units import format_duration, format_share

__all__ = ["allocator"]


def allocator(analysis: RankAnalysis) -> Finding | None:
    """Find steps that wait for ``cudaMalloc``, ``cudaFree`` or their like.

    PyTorch's allocator keeps what it has, so steady training calls neither. Model: all of the exposed time in such
    calls goes away once memory has settled; half of it where the largest batch still grows it.
    """
    row = analysis.breakdown.category("runtime_alloc")
    spent_ns = row.mean_ns or 0.0
    if not analysis.breakdown.has_device or not worth_it(spent_ns, analysis):
        return None
    return finding(
        "allocator",
        f"Allocation: {format_share(row.share)} of {whole(analysis)} asks the driver for memory",
        (
            (
                f"{format_duration(spent_ns)} {each(analysis)} in calls that take or free device memory, with the "
                "device idle; in a settled run PyTorch's allocator makes none."
            ),
        ),
        "If these are the first steps, record later ones (skip_first). Else memory is short or fragmented: set "
        "PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF in older releases), keep batch shapes "
        "constant, and drop empty_cache() calls.",
        saving_ns=(spent_ns / 2, spent_ns),
        step_ns=step_ns(analysis),
        model="Such calls end when memory has settled; half of them where shapes go on changing.",
        rank=analysis.rank,
    )
