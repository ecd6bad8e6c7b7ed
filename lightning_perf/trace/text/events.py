"""The events of a trace file as typed records. Only the fields that some table needs are decoded.

The phase (``ph``) is the union's tag, so that flow events, a quarter of a trace, cost next to nothing.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar

import msgspec

NO_RAW = msgspec.Raw(b"")
_NAN = float("nan")

Number = int | float
Label = int | float | str


class Args(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={
        "types": "Input type",
        "dims": "Input Dims",
        "old_dims": "Input dims",
        "strides": "Input Strides",
        "values": "Concrete Inputs",
        "sequence": "Sequence number",
        "forward_thread": "Fwd thread id",
        "blocks_per_sm": "blocks per SM",
        "occupancy_percent": "est. achieved occupancy %",
        "registers": "registers per thread",
        "shared_bytes": "shared memory",
        "collective": "Collective name",
        "in_elements": "In msg nelems",
        "out_elements": "Out msg nelems",
        "group_size": "Group size",
        "group": "Process Group Name",
        "graph_node": "graph node id",
        "region": "name",
        "regions": "annotation",
    },
):
    """``args`` of a complete event. Rare fields, and those of any type, stay raw and are decoded when needed."""

    types: msgspec.Raw = NO_RAW
    dims: msgspec.Raw = NO_RAW
    old_dims: msgspec.Raw = NO_RAW
    strides: msgspec.Raw = NO_RAW
    values: msgspec.Raw = NO_RAW
    sequence: Label = -1
    forward_thread: Label = 0
    flops: Label = 0
    correlation: Label = -1
    device: Label | None = None
    stream: Label | None = None
    bytes: Label = 0
    blocks_per_sm: Label = _NAN
    occupancy_percent: Label = _NAN
    registers: Label = -1
    shared_bytes: Label = -1
    grid: msgspec.Raw = NO_RAW
    block: msgspec.Raw = NO_RAW
    kind: msgspec.Raw = NO_RAW
    collective: msgspec.Raw = NO_RAW
    dtype: msgspec.Raw = NO_RAW
    in_elements: msgspec.Raw = NO_RAW
    out_elements: msgspec.Raw = NO_RAW
    group_size: msgspec.Raw = NO_RAW
    group: msgspec.Raw = NO_RAW
    finished: msgspec.Raw = NO_RAW
    graph_node: Label = 0
    region: msgspec.Raw = NO_RAW
    regions: msgspec.Raw = NO_RAW
    autograd_phase: msgspec.Raw = NO_RAW
    original_stream: Label | None = None


_NO_ARGS = Args()


class Complete(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """An event with a start and a duration."""

    cat: str = ""
    name: str = ""
    pid: Label = 0
    tid: Label = 0
    ts: Number | None = None
    dur: Number | None = None
    args: Args = _NO_ARGS


class ExactComplete(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """The same, with times as integers and decimals, for times that float64 does not hold."""

    cat: str = ""
    name: str = ""
    pid: Label = 0
    tid: Label = 0
    ts: int | Decimal | None = None
    dur: int | Decimal | None = None
    args: Args = _NO_ARGS


class InstantArgs(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={
        "device_type": "Device Type",
        "device": "Device Id",
        "address": "Addr",
        "bytes": "Bytes",
        "allocated_bytes": "Total Allocated",
        "reserved_bytes": "Total Reserved",
    },
):
    """``args`` of an instant. Only those of allocator events are used."""

    device_type: Label = -1
    device: Label = -1
    address: Label = 0
    bytes: Label = 0
    allocated_bytes: Label = -1
    reserved_bytes: Label = -1


_NO_INSTANT_ARGS = InstantArgs()


class Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """An event without a duration."""

    cat: ClassVar[str] = "instant"
    name: str = ""
    pid: Label = 0
    tid: Label = 0
    ts: int | Decimal | None = None
    args: InstantArgs = _NO_INSTANT_ARGS


class Counter(msgspec.Struct, gc=False, tag_field="ph", tag="C"):
    """A sample of a counter."""

    cat: ClassVar[str] = "counter"
    name: str = ""
    pid: Label = 0
    ts: int | Decimal | None = None
    args: msgspec.Raw = NO_RAW


class Named(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """Metadata, e.g. the name of a thread."""

    cat: ClassVar[str] = "metadata"
    name: str = ""
    pid: Label = 0
    tid: Label = 0
    args: dict[str, Any] = {}


# Every other phase of the trace event format. They are known, but have no table.
_OTHER_PHASES = tuple(
    msgspec.defstruct(
        f"Phase{ord(phase)}",
        [],
        tag_field="ph",
        tag=phase,
        gc=False,
        namespace={"cat": "other", "__annotations__": {"cat": ClassVar[str]}},
    )
    for phase in "sftBEIbneSTpFPNODVvRc()"
)


def _decoder(complete: type[msgspec.Struct]) -> msgspec.json.Decoder[list[Any]]:
    union: Any = complete
    for other in (Instant, Counter, Named, *_OTHER_PHASES):
        union = union | other
    return msgspec.json.Decoder(list[union])


decode = _decoder(Complete).decode
"""Decode a JSON array of events."""

decode_exact = _decoder(ExactComplete).decode
"""Decode a JSON array of events with times as decimals."""

decode_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
"""Decode a JSON array of events into the text of each."""

FAULTS = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors of decoding damaged text."""
