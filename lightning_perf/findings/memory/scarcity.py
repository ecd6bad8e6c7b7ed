"""Devices with little memory left, which the rules about the contents of memory look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lightning_perf.analysis.model.memory import DeviceMemory
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.units import format_bytes, format_share

__all__ = ["SCARCE", "Scarce", "scarce_devices"]

SCARCE = 0.7
"""Share of the memory in use at the peak from which on less use is worth a change."""


@dataclass(frozen=True)
class Scarce:
    """A device or host with little memory left.

    Attributes:
        memory: Its memory.
        name: Its name in a sentence.
        share: Share of its memory that is in use at the peak.
        tensor_bytes: Memory in tensors at the peak.
    """

    memory: DeviceMemory
    name: str
    share: float
    tensor_bytes: int

    def describe(self) -> str:
        """Return a sentence about the peak."""
        return (
            f"At the peak {format_bytes(self.tensor_bytes)} are in tensors, and {format_share(self.share)} of the "
            f"memory of {self.name} is in use."
        )


def scarce_devices(analysis: RankAnalysis) -> Iterator[Scarce]:
    """Yield the devices of a rank with little memory left, as far as the recording shows their contents."""
    for memory in analysis.memory.devices if analysis.memory is not None else ():
        if not memory.parts:
            continue
        if memory.device is not None:
            used, total = memory.peak_reserved_bytes or memory.peak_allocated_bytes, memory.total_bytes
        else:
            used, total = memory.peak_allocated_bytes, memory.batch.available_bytes if memory.batch else None
        if total and used >= SCARCE * total:
            name = "the host" if memory.device is None else f"device {memory.device}"
            yield Scarce(memory, name, used / total, memory.peak_allocated_bytes)
