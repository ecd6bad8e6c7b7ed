"""`Sweep`: untrained backbones by latency, a document. Plain values: reading it needs no torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lightning_perf.documents import Format, SavedDocument, TextDocument
from lightning_perf.inference.counting.roofline import Peaks
from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.measurement.measure import Effort, Latency
from lightning_perf.inference.results.tradeoff import Machine
from lightning_perf.statistics.values import Estimate

__all__ = ["SCHEMA_VERSION", "Sweep", "SweepRow"]

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
class Sweep(TextDocument, SavedDocument):
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

    _format = Format("sweep", "sweep", SCHEMA_VERSION, "sweep again", InferenceError)

    def _renderers(self) -> tuple[Callable[..., None], Callable[[Sweep], str]]:
        from lightning_perf.inference.sweep.render import print_sweep, render_markdown

        return print_sweep, render_markdown

    def save_plot(self, path: str | os.PathLike[str]) -> None:
        """Plot median latency against multiply-accumulates.

        Args:
            path: The file; its suffix names the format: ``.png``, ``.svg`` or ``.pdf``.

        Raises:
            InferenceError: There is nothing to plot, or the file cannot be written.
            MissingExtraError: matplotlib is not installed.
        """
        from lightning_perf.inference.sweep.render import save_plot

        save_plot(self, Path(path))
