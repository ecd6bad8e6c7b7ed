"""The layers of an FP8 training."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_perf.analysis.precision.fp8_layers import Fp8Layers
from lightning_perf.report.labels import count_of
from lightning_perf.show.blocks import Block, Cell, Heading, Line, table


def fp8_section(found: Fp8Layers, top: int) -> Iterator[Block]:
    """Yield the summary, and the tensors that saturate or underflow most."""
    yield Heading("FP8 layers", definition="fp8-layers")
    yield Line(found.summary, "warning" if any(row.troubled for row in found.rows) else "plain")
    yield Line(f"{count_of(found.samples, 'sampled step')}, {found.library}.", "quiet")
    yield table(
        ("layer", "tensor", "format", "smallest maximum", "largest", "scale", "flushed", "saturated", "steps"),
        (
            (
                Cell(row.layer, troubled=row.troubled),
                row.tensor,
                row.format,
                Cell(f"{row.smallest_largest:.3g}", row.smallest_largest),
                Cell(f"{row.largest:.3g}", row.largest),
                Cell(f"{row.scale:.3g}", row.scale),
                row.flushed,
                row.saturated,
                Cell(f"{row.saturated_steps} of {row.samples}", row.saturated_steps),
            )
            for row in found.rows[:top]
        ),
        kinds="code figure figure figure figure figure share share figure",
        definitions={"flushed": "flushed-share", "saturated": "saturated-share"},
        extra=("smallest maximum",),
    )
