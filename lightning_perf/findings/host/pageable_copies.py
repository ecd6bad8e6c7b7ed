"""The rule for batches that are copied to the device from pageable memory."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import counted, each, step_ns, worth_it
from lightning_perf.units import format_bandwidth, format_bytes, format_duration

__all__ = ["pageable_copies"]


def pageable_copies(analysis: RankAnalysis) -> Finding | None:
    """Find copies to the device that the host has to wait for, because their source is pageable.

    Only the part that no compute hides counts. Model: from pinned memory a copy takes at most half as long, and with
    ``non_blocking`` compute hides it completely.
    """
    loading = analysis.loading
    if loading is None or not loading.pageable_ns:
        return None
    steps = max(loading.steps, 1)
    exposed_ns = min(analysis.breakdown.category("memcpy_h2d").mean_ns or 0.0, loading.pageable_ns / steps)
    if not worth_it(exposed_ns, analysis):
        return None
    rate = loading.pageable_bytes / (loading.pageable_ns / 1e9) if loading.pageable_bytes else None
    copies = f"{counted(loading.pageable_copies / steps, 'copy', 'copies')} {each(analysis)}"
    moved = f", {format_bytes(loading.pageable_bytes / steps)} at {format_bandwidth(rate)}" if rate else ""
    return finding(
        "pageable-copies",
        f"Copies from pageable memory: {format_duration(exposed_ns)} {each(analysis)} that no compute hides",
        (f"{copies} from pageable host memory to the device{moved}.",),
        "Pin the batches: DataLoader(…, pin_memory=True). Lightning then copies them without waiting. In your own "
        "code, pin the tensor and call tensor.to(device, non_blocking=True).",
        saving_ns=(exposed_ns / 2, exposed_ns),
        step_ns=step_ns(analysis),
        model="Pinned copies take at most half as long. Next to compute they cost nothing.",
        rank=analysis.rank,
    )
