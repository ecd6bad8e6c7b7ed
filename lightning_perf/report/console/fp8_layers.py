"""The layers of an FP8 training on the console."""

from __future__ import annotations

from rich.console import Group, RenderableType

from lightning_perf.analysis.precision.fp8_layers import Fp8Layers
from lightning_perf.report.console.layout import label, table
from lightning_perf.report.labels import count_of
from lightning_perf.terminal_text import plain, prose
from lightning_perf.units import NOT_AVAILABLE, format_share

__all__ = ["fp8_section"]


def fp8_section(found: Fp8Layers, top: int) -> RenderableType:
    """Return the summary, and the tensors that saturate or underflow most.

    Args:
        found: The FP8 layers.
        top: Rows of the table.
    """
    troubled = any(row.troubled for row in found.rows)
    grid = table("layer", "tensor", "format", "largest", "scale", "flushed", "saturated", "steps")
    for row in found.rows[:top]:
        grid.add_row(
            label(row.layer, "yellow" if row.troubled else ""),
            row.tensor,
            row.format,
            f"{row.largest:.3g}",
            f"{row.scale:.3g}",
            NOT_AVAILABLE if row.flushed is None else format_share(row.flushed),
            NOT_AVAILABLE if row.saturated is None else format_share(row.saturated),
            f"{row.saturated_steps} of {row.samples}",
        )
    parts: list[RenderableType] = [
        prose(found.summary, "yellow" if troubled else ""),
        plain(f"{count_of(found.samples, 'sampled step')}, {found.library}.", "dim"),
        grid,
    ]
    return Group(*parts)
