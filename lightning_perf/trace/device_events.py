"""The columns of what ran on devices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lightning_perf.trace.columns import BoolArray, Float32Array, Int16Array, Int32Array, Int64Array

__all__ = ["Collectives", "DeviceEvents", "DeviceKind"]


class DeviceKind(IntEnum):
    """What a piece of device work is. The order is the order of priority in the step-time breakdown."""

    COMPUTE = 0
    COLLECTIVE = 1
    H2D = 2
    D2H = 3
    D2D = 4
    P2P = 5
    COPY = 6
    """A copy whose direction the trace does not tell."""
    MEMSET = 7


@dataclass(frozen=True, eq=False)
class DeviceEvents:
    """Work that ran on a device: kernels, copies and memsets.

    Attributes:
        start_ns: Begin, ascending.
        end_ns: End; never before its begin.
        name: Code into `Trace.names`.
        kind: A `DeviceKind` (uint8).
        device: Device ordinal.
        stream: Stream number.
        correlation: Number shared with the runtime call that started it, or -1.
        bytes: Bytes moved by a copy or memset, or 0 when not recorded.
        grid_blocks: Thread blocks of a kernel (product of its grid), or 0.
        block_threads: Threads a block (product of its block), or 0.
        blocks_per_sm: As recorded; nan when not.
        occupancy: Estimated achieved occupancy, a share from 0 to 1; nan when not recorded.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    name: Int32Array
    kind: NDArray[np.uint8]
    device: Int16Array
    stream: Int64Array
    correlation: Int64Array
    bytes: Int64Array
    grid_blocks: Int64Array
    block_threads: Int32Array
    blocks_per_sm: Float32Array
    occupancy: Float32Array

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Int64Array:
        """Length of each piece of work in nanoseconds."""
        return self.end_ns - self.start_ns

    @cached_property
    def is_compute(self) -> BoolArray:
        """Rows that are compute kernels (collectives are not)."""
        return np.equal(self.kind, DeviceKind.COMPUTE)

    @cached_property
    def is_collective(self) -> BoolArray:
        """Rows that are collective kernels, by name (nccl, rccl, …)."""
        return np.equal(self.kind, DeviceKind.COLLECTIVE)

    @cached_property
    def is_copy(self) -> BoolArray:
        """Rows that are copies of any direction."""
        return (self.kind >= DeviceKind.H2D) & (self.kind <= DeviceKind.COPY)

    @cached_property
    def is_memset(self) -> BoolArray:
        """Rows that are memsets."""
        return np.equal(self.kind, DeviceKind.MEMSET)


@dataclass(frozen=True, eq=False)
class Collectives:
    """What the trace recorded about collectives (sparse: one row a device row that carries it).

    Attributes:
        device_row: Row in `Trace.device`.
        name: Code into `Trace.names` (``allreduce``, ``_allgather_base``, …).
        dtype: Code into `Trace.names` (``Float``, ``BFloat16``, …).
        group: Code into `Trace.names`: the process group's name.
        in_elements: Elements sent.
        out_elements: Elements received.
        group_size: Ranks in the group.
    """

    device_row: Int32Array
    name: Int32Array
    dtype: Int32Array
    group: Int32Array
    in_elements: Int64Array
    out_elements: Int64Array
    group_size: Int32Array

    def __len__(self) -> int:
        return len(self.device_row)
