"""`Tradeoff` and `Sweep`: the documents of variants of a model, and of untrained backbones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_perf.documents import TOP, Format, LongDocument, PageDocument, PlottedDocument, TextDocument
from lightning_perf.inference.counting.document import Count, Peaks, Roofline
from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.measurement.measure import Accuracy, Effort, Latency
from lightning_perf.statistics.values import Estimate
from lightning_perf.units import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_perf.page.html import Kind
    from lightning_perf.show.blocks import Block, Parts


SCHEMA_VERSION = 1
"""Version of the document's layout. Increase it with every change that an old reader would misread."""

METHOD_VERSION = 3
"""Version of the measuring method. Do not compare figures of different versions."""


class Machine(Struct, frozen=True):
    """The machine of a measurement.

    Attributes:
        device: Name of the device that variants ran on.
        device_type: Type of the device, e.g. ``cpu``.
        cpu: Name of the processor.
        cpus: Processors that this process may use.
        platform: Operating system.
        load_before: Load average over the minute before the measurement: the load from other processes.
        load_after: Load average at the end, which includes the measurement itself.
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


class ColdStart(Struct, frozen=True):
    """Start-up time and memory of a fresh process.

    Attributes:
        load_ms: Time to load the artefact, with the imports of its runtime; torch itself is imported before.
        first_call_ms: Time of the first call, on one input.
        peak_rss_bytes: Peak resident memory of the process after its first call, torch included.
        peak_device_bytes: Peak device memory that torch reserved; None on a CPU.
    """

    load_ms: float
    first_call_ms: float
    peak_rss_bytes: int | None
    peak_device_bytes: int | None


class Reload(Struct, frozen=True):
    """Difference of outputs between a fresh process and the process that built the artefact.

    Attributes:
        max_difference: Largest difference of an output, as a share of the largest output.
        tolerance: Largest allowed difference.
    """

    max_difference: float
    tolerance: float


class Row(Struct, frozen=True):
    """The results of one variant.

    Attributes:
        variant: Name of the variant.
        transforms: Transforms that changed the model, in order.
        runtime: Runtime that executes it.
        summary: Description of its parts.
        reason: Reason why figures are missing; None if the variant did not fail.
        folder: Folder of the artefact; None if it was not kept or not built.
        parameters: Number of parameters of the changed model.
        size_bytes: Size of the artefact's files.
        packed_bytes: Size of the weights after compression with gzip, if that is clearly smaller, e.g. with shared
            weights; otherwise None.
        build_s: Build time.
        cold: Start-up time and memory of a fresh process.
        reload: Difference of outputs in a fresh process.
        output_error: Largest difference from the original's outputs, as a share of the original's largest output.
        accuracy: Accuracy on the validation data; None without validation data.
        latencies: Latency for each batch size and number of threads.
        provenance: Settings that affect the result.
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

    @property
    def is_exact(self) -> bool:
        """Whether it has the weights of the original and computes in float32."""
        return not self.transforms and (self.provenance or {}).get("dtype") == "float32"

    def latency(self, threads: int, batch: int) -> Latency | None:
        """Return the latency for this number of threads and this batch size, or None."""
        found = (each for each in self.latencies if (each.threads, each.batch) == (threads, batch))
        return next(found, None)


class Cell(Struct, frozen=True):
    """One batch size and number of threads, over all variants.

    Attributes:
        threads: CPU threads.
        batch: Inputs per call.
        noise: A/A noise: the speed-up of a second measurement of the baseline over the first.
        tie: Relative difference of latency that is within the noise: the end of its interval that is farther from 1.
        front: Variants that no other variant beats in median latency and accuracy, the fastest first; without accuracy,
            only the fastest.
        size_front: The same for size and accuracy.
    """

    threads: int
    batch: int
    noise: Estimate
    tie: float
    front: tuple[str, ...]
    size_front: tuple[str, ...]

    @property
    def conditions(self) -> str:
        """Batch size and number of threads, as text."""
        return f"batch {self.batch}, {counted(self.threads, 'thread')}"


class Recommendation(Struct, frozen=True):
    """The variant to deploy.

    Attributes:
        max_latency_ms: Limit on the p90 latency with the first batch size and number of threads; None for no limit.
        max_accuracy_drop_points: Limit on the drop of accuracy from the original, in percentage points; None for no
            limit.
        variant: Variant to deploy; None if no variant is within the limits.
        reason: Explanation in one or two sentences.
    """

    max_latency_ms: float | None
    max_accuracy_drop_points: float | None
    variant: str | None
    reason: str


def measured_rows(rows: Sequence[Row], threads: int, batch: int) -> list[tuple[Row, Latency]]:
    """Return the variants with a latency, without those that failed, even at another batch size."""
    pairs = [(row, row.latency(threads, batch)) for row in rows if row.reason is None]
    return [(row, latency) for row, latency in pairs if latency is not None]


class Tradeoff(LongDocument, PageDocument, PlottedDocument, frozen=True):
    """Accuracy, latency and size of all variants of one model.

    Attributes:
        schema_version: `SCHEMA_VERSION` of the writer.
        method_version: `METHOD_VERSION` of the writer.
        tool_version: Version of lightning_perf that wrote it.
        model: Name of the model.
        input_shape: Shape of one input, without the batch dimension.
        machine: Machine of the measurement.
        effort: Number and duration of the timed calls.
        validation_inputs: Number of inputs that accuracy was measured on; None without validation data.
        notes: Remarks that matter for the reliability of the figures.
        rows: The variants; the first is the original, the baseline of all ratios.
        cells: The batch sizes and numbers of threads, in the order of the options.
        recommendation: The variant to deploy; None without limits.
        count: Parameters, MACs and FLOPs of the original by layer, for one input; None if they could not be counted.
        roofline: Shortest possible time of the original, with the first batch size and number of threads.
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

    _format = Format("trade-off document", "document", SCHEMA_VERSION, "measure again", InferenceError)

    def row(self, variant: str) -> Row:
        """Return the row of a variant.

        Raises:
            KeyError: The name is unknown.
        """
        for row in self.rows:
            if row.variant == variant:
                return row
        raise KeyError(variant)

    def measured(self, cell: Cell) -> list[tuple[Row, Latency]]:
        """Return the variants with a latency in a cell, without those that failed, even at another batch size."""
        return measured_rows(self.rows, cell.threads, cell.batch)

    def blocks(self, top: int = TOP) -> Iterator[Block]:
        """Yield the recommendation, then the tables, with so many layers."""
        from lightning_perf.inference.results.blocks import tradeoff_blocks

        return tradeoff_blocks(self, top)

    def _picture(self) -> Figure:
        from lightning_perf.inference.results.page import draw_tradeoff

        return draw_tradeoff(self)

    def _page(self) -> tuple[Kind, str]:
        return "inference", self.model

    def _parts(self) -> Parts:
        from lightning_perf.inference.results.page import tradeoff_parts

        return tradeoff_parts(self)


SWEEP_VERSION = 1
"""Version of the document's layout. Increase it with every change that an old reader would misread."""


class SweepRow(Struct, frozen=True):
    """The results of one backbone.

    Attributes:
        name: Name of the backbone, as given.
        reason: Reason why it has no latency; None if it has one.
        parameters: Number of parameters.
        macs: Multiply-accumulates of the batch.
        size_bytes: Bytes of parameters and buffers.
        uncounted: Whether it has operators without a formula, so that `macs` is too low.
        latency: Latency, with the speed-up over the first backbone.
        bound_ms: Shortest possible time for arithmetic and memory traffic.
        efficiency: `bound_ms` divided by the median latency: the share of the peak that it reaches.
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


class Sweep(TextDocument, PlottedDocument, frozen=True):
    """Latency of untrained backbones in eager PyTorch and float32, timed in alternating rounds.

    Attributes:
        schema_version: `SCHEMA_VERSION` of the writer.
        tool_version: Version of lightning_perf that wrote it.
        input_shape: Channels, height and width of one input.
        classes: Number of outputs of each backbone.
        batch: Inputs per call.
        threads: CPU threads.
        machine: Machine of the measurement.
        effort: Number and duration of the timed calls.
        peaks: Peak rates of the device.
        noise: A/A noise: the speed-up of a second measurement of the first backbone over the first one; None if no
            backbone ran.
        macs_correlation: Spearman's rank correlation of MACs and median latency; None with fewer than three backbones.
        rows: The backbones, the fastest first, then the ones without a latency.
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

    _format = Format("sweep", "sweep", SWEEP_VERSION, "time the backbones again", InferenceError)

    def blocks(self) -> Iterator[Block]:
        """Yield the table of the backbones, and remarks on the figures."""
        from lightning_perf.inference.results.blocks import sweep_blocks

        return sweep_blocks(self)

    def _picture(self) -> Figure:
        from lightning_perf.inference.results.page import draw_sweep

        return draw_sweep(self)
