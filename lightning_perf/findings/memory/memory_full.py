"""The rule for devices with nearly full memory."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding
from lightning_perf.units import format_bytes, format_share

__all__ = ["memory_full"]

LIMIT = 0.95
"""Share of the device's memory reserved at the peak from which a longer batch may not fit."""


def memory_full(analysis: RankAnalysis) -> Finding | None:
    """Find devices with so little free memory that the next larger batch may fail or has to request memory.

    No saving is estimated: the run is at stake, not its speed.
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
                        f"{format_bytes(device.total_bytes)}. Tensors use {format_bytes(device.peak_allocated_bytes)}."
                    ),
                ),
                action='Leave room: Trainer(precision="bf16-mixed"), activation checkpointing, half the batch_size '
                "with Trainer(accumulate_grad_batches=2), or PYTORCH_ALLOC_CONF=expandable_segments:True against "
                "fragmentation.",
                saving_low_ms=None,
                saving_high_ms=None,
                model="",
                rank=analysis.rank,
            )
    return None
