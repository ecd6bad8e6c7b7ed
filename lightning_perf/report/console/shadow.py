"""Shadow steps on the console: the drift from FP32 over the run, and by layer."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from lightning_perf.analysis.precision.shadow import LOW_COSINE, ShadowDrift
from lightning_perf.report.console.layout import label, table
from lightning_perf.report.labels import count_of
from lightning_perf.terminal_text import prose
from lightning_perf.units import NOT_AVAILABLE, format_share

__all__ = ["shadow_section"]

MAX_POINTS = 8


def shadow_section(drift: ShadowDrift, top: int) -> RenderableType:
    """Return the summary, some points of the series, and the layers with the lowest cosines.

    Args:
        drift: The shadow steps.
        top: Rows of the table of layers.
    """
    return Group(*_parts(drift, top))


def _parts(drift: ShadowDrift, top: int) -> Iterator[RenderableType]:
    yield prose(" ".join(drift.summary), "yellow" if drift.drifting else "")
    cost = f", {format_share(drift.cost_share)} of the fit's time" if drift.cost_share is not None else ""
    yield Text(f"{count_of(len(drift.points), 'shadow step')}{cost}.", style="dim")
    series = table("step", "loss", "loss in FP32", "cosine", "norm ratio")
    last = len(drift.points) - 1
    shown = sorted({round(i * last / (MAX_POINTS - 1)) for i in range(MAX_POINTS)})
    for point in (drift.points[i] for i in shown):
        series.add_row(
            label(str(point.step)),
            _number(point.loss, "#.4g"),
            _number(point.fp32_loss, "#.4g"),
            _number(point.cosine, ".5f"),
            _number(point.norm_ratio, ".4f"),
        )
    yield series
    layers = table("layer", "lowest cosine", "at step", "mean cosine", "norm ratio")
    for layer in drift.layers[:top]:
        low = layer.lowest_cosine is not None and layer.lowest_cosine < LOW_COSINE
        lowest, highest = _number(layer.lowest_norm_ratio, ".3f"), _number(layer.highest_norm_ratio, ".3f")
        layers.add_row(
            label(layer.name, "yellow" if low else ""),
            _number(layer.lowest_cosine, ".5f"),
            NOT_AVAILABLE if layer.lowest_step is None else str(layer.lowest_step),
            _number(layer.mean_cosine, ".5f"),
            f"{lowest}–{highest}",
        )
    yield layers
    if len(drift.layers) > top:
        yield Text(f"… and {len(drift.layers) - top} more", style="dim")


def _number(value: float | None, pattern: str) -> str:
    return NOT_AVAILABLE if value is None else format(value, pattern)
