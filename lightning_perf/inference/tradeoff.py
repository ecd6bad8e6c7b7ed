"""`Tradeoff`: the versioned document of accuracy against latency and size. Typed, JSON on disk, complete in itself."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from lightning_perf.inference.accuracy import Accuracy
from lightning_perf.inference.count_document import Count
from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.measure import Effort, Latency
from lightning_perf.inference.roofline import Roofline
from lightning_perf.statistics.values import Estimate

__all__ = [
    "METHOD_VERSION",
    "SCHEMA_VERSION",
    "Cell",
    "ColdStart",
    "Machine",
    "Recommendation",
    "Reload",
    "Row",
    "Tradeoff",
    "from_json",
    "to_json",
]

SCHEMA_VERSION = 1
"""Version of the document's layout: raised by every change that an old reader would misread."""

METHOD_VERSION = 2
"""Version of the way of measuring: figures of different versions are not to be compared."""


@dataclass(frozen=True)
class Machine:
    """Where it was measured.

    Attributes:
        device: Name of the device that variants ran on.
        device_type: Its type, as ``cpu``.
        cpu: The processor.
        cpus: Processors that this process may use.
        platform: Operating system.
        load_before: Load average over a minute before the measurement; what is above 0 came from others.
        load_after: The same after it; it holds the measurement's own.
        versions: Versions of Python and of the libraries.
    """

    device: str
    device_type: str
    cpu: str
    cpus: int
    platform: str
    load_before: float | None
    load_after: float | None
    versions: dict[str, str]


@dataclass(frozen=True)
class ColdStart:
    """What a fresh process took.

    Attributes:
        load_ms: Loading the artefact, with the imports of its runtime; torch itself is imported before.
        first_call_ms: The first call, on one input.
        peak_rss_bytes: The most memory that the process held, all batch sizes and torch itself included.
        peak_device_bytes: The most device memory that torch held; None on a CPU.
    """

    load_ms: float
    first_call_ms: float
    peak_rss_bytes: int | None
    peak_device_bytes: int | None


@dataclass(frozen=True)
class Reload:
    """Whether the artefact gives the same outputs in a fresh process as where it was built.

    Attributes:
        max_difference: Largest difference of an output, as a share of the largest output.
        tolerance: What it may be.
    """

    max_difference: float
    tolerance: float


@dataclass(frozen=True)
class Row:
    """One variant.

    Attributes:
        variant: Its name.
        transforms: What changed the model, in order.
        runtime: What executes it.
        summary: What its parts do.
        reason: Why it has no figures, or not all; None when it has.
        folder: The artefact; None when it was not kept or not built.
        parameters: Parameters of the changed model.
        size_bytes: Size of the artefact's files.
        packed_bytes: Size that the weights could be stored in, where the files do not show it, as with shared
            weights and their codebooks; else None.
        build_s: Time that building took.
        cold: What a fresh process took.
        reload: Whether it gave the same outputs there.
        output_error: Largest difference of an output from the original's, as a share of the original's largest.
        accuracy: On the validation data; None without.
        latencies: What calls took, a row for each batch size and number of threads.
        provenance: Settings that decided the outcome.
    """

    variant: str
    transforms: tuple[str, ...]
    runtime: str
    summary: str
    reason: str | None = None
    folder: str | None = None
    parameters: int | None = None
    size_bytes: int | None = None
    packed_bytes: int | None = None
    build_s: float | None = None
    cold: ColdStart | None = None
    reload: Reload | None = None
    output_error: float | None = None
    accuracy: Accuracy | None = None
    latencies: tuple[Latency, ...] = ()
    provenance: dict[str, str] | None = None

    def latency(self, threads: int, batch: int) -> Latency | None:
        """What calls took with this many threads and inputs, or None."""
        for latency in self.latencies:
            if (latency.threads, latency.batch) == (threads, batch):
                return latency
        return None


@dataclass(frozen=True)
class Cell:
    """One batch size and number of threads, over all variants.

    Attributes:
        threads: CPU threads.
        batch: Inputs a call.
        noise: The baseline measured twice, second over first: what no difference looks like here.
        tie: Relative difference of latency that this noise cannot tell from none: the end of its interval that is
            farther from 1.
        front: Variants that no other beats in median latency and accuracy, the fastest first; the fastest alone when
            there is no accuracy.
        size_front: The same for size and accuracy.
    """

    threads: int
    batch: int
    noise: Estimate
    tie: float
    front: tuple[str, ...]
    size_front: tuple[str, ...]


@dataclass(frozen=True)
class Recommendation:
    """What to deploy.

    Attributes:
        max_latency_ms: What a call may take: nine of ten stay below (p90), with the first batch size and number of
            threads; None for no limit.
        max_accuracy_drop_points: Percentage points that accuracy may be lower than the original's; None for no limit.
        variant: What to deploy; None when nothing keeps the limits.
        reason: Why, in a sentence or two.
    """

    max_latency_ms: float | None
    max_accuracy_drop_points: float | None
    variant: str | None
    reason: str


@dataclass(frozen=True)
class Tradeoff:
    """What is known of the ways to run one model.

    Attributes:
        schema_version: `SCHEMA_VERSION` of the writer.
        method_version: `METHOD_VERSION` of the writer.
        tool_version: Version of lightning_perf that wrote it.
        model: Name of the model.
        input_shape: Shape of one input, without the batch.
        machine: Where it was measured.
        effort: How much was measured.
        validation_inputs: Inputs that accuracy was measured on; None without.
        notes: What a reader must know before trusting the figures.
        rows: The variants; the first is the original, the baseline of all ratios.
        cells: The batch sizes and numbers of threads, in the order asked for.
        recommendation: What to deploy; None without limits.
        count: The original's parameters, MACs and FLOPs by layer, for one input; None when it could not be counted.
        roofline: The least time that the original can take, with the first batch size and number of threads.
    """

    schema_version: int
    method_version: int
    tool_version: str
    model: str
    input_shape: tuple[int, ...]
    machine: Machine
    effort: Effort
    validation_inputs: int | None
    notes: tuple[str, ...]
    rows: tuple[Row, ...]
    cells: tuple[Cell, ...]
    recommendation: Recommendation | None = None
    count: Count | None = None
    roofline: Roofline | None = None

    def row(self, variant: str) -> Row:
        """The row of a variant.

        Raises:
            KeyError: There is none of this name.
        """
        for row in self.rows:
            if row.variant == variant:
                return row
        raise KeyError(variant)


def to_json(tradeoff: Tradeoff, *, indent: int | None = None) -> bytes:
    """Encode a document as UTF-8 JSON.

    Args:
        tradeoff: The document.
        indent: Spaces a level, or None for one line.
    """
    data = msgspec.json.encode(tradeoff)
    return data if indent is None else msgspec.json.format(data, indent=indent)


def from_json(data: bytes | str) -> Tradeoff:
    """Decode a document, checking every field's type.

    Args:
        data: What `to_json` wrote.

    Raises:
        InferenceError: The data is no such document, or one of another schema version.
    """
    try:
        version = msgspec.json.decode(data, type=_Head).schema_version
    except msgspec.DecodeError as error:
        raise InferenceError(f"this is no trade-off document ({error})") from error
    if version != SCHEMA_VERSION:
        action = "upgrade lightning-perf" if version > SCHEMA_VERSION else "measure again"
        raise InferenceError(
            f"the document has schema version {version}, this lightning-perf reads {SCHEMA_VERSION}: {action}"
        )
    try:
        return msgspec.json.decode(data, type=Tradeoff)
    except msgspec.DecodeError as error:
        raise InferenceError(f"the document is damaged ({error})") from error


class _Head(msgspec.Struct):
    schema_version: int
