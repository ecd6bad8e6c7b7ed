"""`Sweep`: the document of untrained backbones by latency. Reading it needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_perf.documents import Format, TextDocument
from lightning_perf.inference.counting.document import Peaks
from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.measurement.measure import Effort, Latency
from lightning_perf.inference.results.tradeoff import Machine, PlottedDocument
from lightning_perf.statistics.values import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_perf.show.blocks import Block

SCHEMA_VERSION = 1
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

    _format = Format("sweep", "sweep", SCHEMA_VERSION, "time the backbones again", InferenceError)

    def blocks(self) -> Iterator[Block]:
        """Yield the table of the backbones, and remarks on the figures."""
        from lightning_perf.inference.results.blocks import sweep_blocks

        return sweep_blocks(self)

    def _draw(self) -> Figure:
        from lightning_perf.inference.results.plot import draw_sweep

        return draw_sweep(self)
