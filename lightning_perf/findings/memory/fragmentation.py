"""The rule for allocators that hold much memory without tensors in it."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.memory.scarcity import scarce_devices
from lightning_perf.units import format_bytes, format_share

__all__ = ["fragmentation"]

LIMIT = 0.2
"""Share of the reserved memory without tensors at the peak from which the allocator is worth a change."""


def fragmentation(analysis: RankAnalysis) -> Finding | None:
    """Find devices with scarce memory and an allocator that holds much of it without tensors.

    No saving is estimated: the free pieces limit the batch, not the speed.
    """
    for device in scarce_devices(analysis):
        unused = device.memory.part_bytes("fragmentation")
        reserved = device.tensor_bytes + unused
        if unused < LIMIT * reserved:
            continue
        return Finding(
            kind="fragmentation",
            severity="moderate",
            title=f"Fragmentation: {format_bytes(unused)} of {device.name} are reserved, but no tensor is in them",
            evidence=(
                device.describe(),
                f"The allocator holds {format_bytes(reserved)} then, {format_share(unused / reserved)} of it unused.",
            ),
            action="Set PYTORCH_ALLOC_CONF=expandable_segments:True before the training starts "
            "(PYTORCH_CUDA_ALLOC_CONF in older releases). Keep batch shapes constant: DataLoader(…, drop_last=True).",
            saving_low_ms=None,
            saving_high_ms=None,
            model="",
            rank=analysis.rank,
        )
    return None
