"""`Sweep`: untrained backbones by latency, a document. Plain values: reading it needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.measure import Effort, Latency
from lightning_perf.inference.roofline import Peaks
from lightning_perf.inference.tradeoff import Machine
from lightning_perf.statistics.values import Estimate

__all__ = ["SCHEMA_VERSION", "Sweep", "SweepRow", "from_json", "to_json"]

SCHEMA_VERSION = 1
"""Version of the document's layout: raised by every change that an old reader would misread."""


@dataclass(frozen=True)
class SweepRow:
    """One backbone.

    Attributes:
        name: As asked for.
        reason: Why it has no latency; None when it has.
        parameters: Numbers in its parameters.
        macs: Multiply-accumulates of the batch.
        size_bytes: Parameters and buffers in memory.
        uncounted: Whether it has operators without a formula, so that `macs` is too low.
        latency: What calls took; its speed-up is over the first backbone.
        bound_ms: The least time that arithmetic and memory allow.
        efficiency: `bound_ms` over the median latency: the part of the peak that it reaches.
    """

    name: str
    reason: str | None = None
    parameters: int | None = None
    macs: int | None = None
    size_bytes: int | None = None
    uncounted: bool = False
    latency: Latency | None = None
    bound_ms: float | None = None
    efficiency: float | None = None


@dataclass(frozen=True)
class Sweep:
    """Backbones without training, timed in turns as PyTorch runs them, in float32.

    Attributes:
        schema_version: `SCHEMA_VERSION` of the writer.
        tool_version: Version of lightning_perf that wrote it.
        input_shape: Of one input: channels, height, width.
        classes: Outputs that each was given.
        batch: Inputs a call.
        threads: CPU threads.
        machine: Where it was measured.
        effort: How much was measured.
        peaks: What the device can do.
        noise: The first backbone measured twice, second over first: what no difference looks like here; None when no
            backbone ran.
        macs_correlation: Spearman's rank correlation of MACs and median latency; None below three backbones.
        rows: The backbones, the fastest first, then those without a latency.
    """

    schema_version: int
    tool_version: str
    input_shape: tuple[int, ...]
    classes: int
    batch: int
    threads: int
    machine: Machine
    effort: Effort
    peaks: Peaks
    noise: Estimate | None
    macs_correlation: float | None
    rows: tuple[SweepRow, ...]


def to_json(sweep: Sweep) -> str:
    """Encode a document as indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(sweep), indent=2).decode() + "\n"


def from_json(data: bytes | str) -> Sweep:
    """Decode a document, checking every field's type.

    Raises:
        InferenceError: The data is no such document, or one of another schema version.
    """
    try:
        version = msgspec.json.decode(data, type=_Head).schema_version
        if version != SCHEMA_VERSION:
            action = "Upgrade lightning-perf" if version > SCHEMA_VERSION else "Sweep again"
            raise InferenceError(
                f"The sweep has schema version {version}, this lightning-perf reads {SCHEMA_VERSION}. {action}."
            )
        return msgspec.json.decode(data, type=Sweep)
    except msgspec.DecodeError as error:
        raise InferenceError(f"This is no sweep ({error}).") from error


class _Head(msgspec.Struct):
    schema_version: int
