"""Device memory is nearly full."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding
from lightning_perf.units import format_bytes, format_share

__all__ = ["memory_full"]

LIMIT = 0.95
"""Part of the device's memory reserved at the peak beyond which a longer batch may not fit."""


def memory_full(analysis: RankAnalysis) -> Finding | None:
    """Find devices whose allocator came near their memory: the next larger batch fails, or frees and asks again.

    No saving is predicted: what is at stake is the run, not its speed.
    """
    for device in analysis.memory.devices if analysis.memory is not None else ():
        if device.device is None or not device.total_bytes or device.peak_reserved_bytes is None:
            continue
        share = device.peak_reserved_bytes / device.total_bytes
        if share >= LIMIT:
            return Finding(
                kind="memory-full",
                severity="moderate",
                title=f"Memory is nearly full: the allocator holds {format_share(share)} of device {device.device}",
                evidence=(
                    (
                        f"At its peak it reserves {format_bytes(device.peak_reserved_bytes)} of "
                        f"{format_bytes(device.total_bytes)}, {format_bytes(device.peak_allocated_bytes)} in tensors."
                    ),
                ),
                action="Leave room: precision='bf16-mixed', activation checkpointing, a smaller batch with "
                "accumulate_grad_batches, or PYTORCH_ALLOC_CONF=expandable_segments:True against fragments.",
                saving_low_ms=None,
                saving_high_ms=None,
                model="",
                rank=analysis.rank,
            )
    return None
