"""`Tradeoff`: the versioned document of accuracy against latency and size. Typed, JSON on disk, complete in itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lightning_perf.documents import Format, PageDocument, SavedDocument
from lightning_perf.inference.accuracy import Accuracy
from lightning_perf.inference.count_document import Count
from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.measure import Effort, Latency
from lightning_perf.inference.roofline import Roofline
from lightning_perf.statistics.values import Estimate

if TYPE_CHECKING:
    from lightning_perf.page.html import Kind

__all__ = [
    "LAYERS",
    "METHOD_VERSION",
    "SCHEMA_VERSION",
    "Cell",
    "ColdStart",
    "Machine",
    "Recommendation",
    "Reload",
    "Row",
    "Tradeoff",
]

SCHEMA_VERSION = 1
"""Version of the document's layout: raised by every change that an old reader would misread."""

METHOD_VERSION = 2
"""Version of the way of measuring: figures of different versions are not to be compared."""

LAYERS = 5
"""Rows of the table of layers, unless asked for more."""


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
class Tradeoff(PageDocument, SavedDocument):
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

    _format = Format("trade-off document", "document", SCHEMA_VERSION, "measure again", InferenceError)

    def row(self, variant: str) -> Row:
        """The row of a variant.

        Raises:
            KeyError: There is none of this name.
        """
        for row in self.rows:
            if row.variant == variant:
                return row
        raise KeyError(variant)

    def print(self, *, file: IO[str] | None = None, layers: int = LAYERS, width: int | None = None) -> None:
        """Print the recommendation, then the tables.

        Args:
            file: Where to; standard output when not given.
            layers: Rows of the table of layers.
            width: Columns; those of the terminal when not given.
        """
        from lightning_perf.inference.render.console import print_tradeoff

        print_tradeoff(self, file=file, layers=layers, width=width)

    def to_markdown(self, *, layers: int = LAYERS) -> str:
        """Return the trade-off as GitHub-flavoured Markdown, e.g. for a pull request or a results page.

        Args:
            layers: Rows of the table of layers.
        """
        from lightning_perf.inference.render.markdown import render_markdown

        return render_markdown(self, layers=layers)

    def save_plot(self, path: str | os.PathLike[str]) -> None:
        """Plot accuracy against latency, with the first batch size and number of threads.

        Args:
            path: The file; its suffix names the format: ``.png``, ``.svg`` or ``.pdf``.

        Raises:
            InferenceError: There is nothing to plot, or the file cannot be written.
            MissingExtraError: matplotlib is not installed.
        """
        from lightning_perf.inference.plot import save_plot

        save_plot(self, Path(path))

    def _page(self) -> tuple[Kind, str]:
        return "inference", self.model
