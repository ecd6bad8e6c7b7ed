"""Tensors that `PerfCallback` listed in a recording: parameters, gradients and optimizer state, by address."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct

from lightning_perf.trace.columns import Int64Array
from lightning_perf.trace.text.salvage import lenient_json

TENSORS_KEY = "lightning_perf.tensors"
"""Field of a trace file that holds the lists."""

TensorKind: TypeAlias = Literal["parameters", "gradients", "optimizer_state", "lightning_perf"]

KINDS: tuple[TensorKind, ...] = ("parameters", "gradients", "optimizer_state", "lightning_perf")
"""Kinds of listed tensors. Buffers of the model count as parameters. The last kind are tensors of the callback
itself. A tensor of several kinds is of the first."""

_LARGEST = 2**63


class TensorBlocks(Struct, frozen=True, eq=False):
    """The memory of listed tensors at one moment, one row per block.

    Attributes:
        device: Device ordinal, -1 for the host.
    """

    kind: Int64Array
    device: Int64Array
    address: Int64Array
    bytes: Int64Array

    def __len__(self) -> int:
        return len(self.address)

    def on(self, device: int) -> TensorBlocks:
        """Return the blocks of one device."""
        rows = self.device == device
        return TensorBlocks(self.kind[rows], self.device[rows], self.address[rows], self.bytes[rows])


class WindowTensors(Struct, frozen=True, eq=False):
    """The listed tensors of one recorded window.

    Attributes:
        begin_ns: Start of the window's file, on the clock of the tables.
        start: The tensors when the recording started.
        available_bytes: By device ordinal: memory that this process could use for tensors when the recording started,
            including the memory of tensors that it already had.
    """

    begin_ns: int
    start: TensorBlocks
    end: TensorBlocks
    available_bytes: dict[int, int]


def read_tensors(header: bytes, trailer: bytes) -> WindowTensors | None:
    """Read the lists from the text before and after the events; None if they are missing or damaged."""
    value: Any = None
    for text in (header, trailer):
        if TENSORS_KEY.encode() in text:
            part = lenient_json(text)
            value = part.get(TENSORS_KEY, value) if isinstance(part, dict) else value
    if not isinstance(value, dict):
        return None
    start, end = _blocks(value.get("start")), _blocks(value.get("end"))
    if start is None or end is None:
        return None
    available = value.get("available_bytes")
    return WindowTensors(0, start, end, _available(available) if isinstance(available, dict) else {})


def _blocks(value: Any) -> TensorBlocks | None:
    if not isinstance(value, dict):
        return None
    rows: dict[tuple[int, int], tuple[int, int, int, int]] = {}
    for code, kind in enumerate(KINDS):
        listed = value.get(kind, [])
        for row in listed if isinstance(listed, list) else ():
            if not isinstance(row, list) or len(row) != 3 or not all(_is_integer(part) for part in row):
                return None
            device, address, size = row
            # Tensors that share memory, e.g. tied weights, are one block.
            if size > 0 and -1 <= device < 2**15 and address > 0:
                rows.setdefault((device, address), (code, device, address, size))
    columns = np.array(list(rows.values()), dtype=np.int64).reshape(-1, 4).T
    return TensorBlocks(*columns)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST


def _available(value: dict[Any, Any]) -> dict[int, int]:
    found = {}
    for key, size in value.items():
        if isinstance(key, str) and key.lstrip("-").isdecimal() and len(key) < 6 and _is_integer(size) and size > 0:
            found[int(key)] = size
    return found
