"""Shadow steps: the drift from FP32 over the run, and by layer."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_perf.analysis.precision.shadow import LOW_COSINE, ShadowDrift
from lightning_perf.report.labels import count_of
from lightning_perf.show.blocks import EVERY_ROW, Block, Cell, Heading, Line, Table, TableRow, rest, table
from lightning_perf.units import NOT_AVAILABLE, format_share

MAX_POINTS = 8


def shadow_section(drift: ShadowDrift, top: int) -> Iterator[Block]:
    """Yield the summary, some points of the series, and the layers with the lowest cosines."""
    yield from _summary(drift)
    last = len(drift.points) - 1
    shown = sorted({round(i * last / (MAX_POINTS - 1)) for i in range(MAX_POINTS)})
    yield table(
        ("step", "loss", "loss in FP32", "cosine", "norm ratio"),
        (
            (
                str(point.step),
                _number(point.loss, "#.4g"),
                _number(point.fp32_loss, "#.4g"),
                _number(point.cosine, ".5f"),
                _number(point.norm_ratio, ".4f"),
            )
            for point in (drift.points[i] for i in shown)
        ),
    )
    yield _layers(drift, top)
    yield from rest(len(drift.layers) - top, "", hint="")


def shadow_page(drift: ShadowDrift) -> Iterator[Block]:
    """Yield the summary and all layers."""
    yield from _summary(drift)
    yield _layers(drift, EVERY_ROW)


def _summary(drift: ShadowDrift) -> Iterator[Block]:
    yield Heading("Shadow steps in FP32", definition="shadow-step")
    yield Line(" ".join(drift.summary), "warning" if drift.drifting else "plain")
    cost = f", {format_share(drift.cost_share)} of the fit's time" if drift.cost_share is not None else ""
    yield Line(f"{count_of(len(drift.points), 'shadow step')}{cost}.", "quiet")


def _layers(drift: ShadowDrift, top: int) -> Table:
    rows: list[TableRow] = []
    for layer in drift.layers[:top]:
        low = layer.lowest_cosine is not None and layer.lowest_cosine < LOW_COSINE
        lowest, highest = _number(layer.lowest_norm_ratio, ".3f"), _number(layer.highest_norm_ratio, ".3f")
        step = Cell(NOT_AVAILABLE if layer.lowest_step is None else str(layer.lowest_step), layer.lowest_step)
        cosines = _number(layer.lowest_cosine, ".5f"), step, _number(layer.mean_cosine, ".5f")
        ratios = Cell(f"{lowest.text}–{highest.text}", layer.lowest_norm_ratio)
        rows.append((Cell(layer.name, troubled=low), *cosines, ratios, layer.unknown))
    return table(
        ("layer", "lowest cosine", "at step", "mean cosine", "norm ratio", "unknown"),
        rows,
        kinds="code figure figure figure figure count",
        definitions={"lowest cosine": "gradient-cosine", "mean cosine": "gradient-cosine", "norm ratio": "norm-ratio"},
        extra=("unknown",),
    )


def _number(value: float | None, pattern: str) -> Cell:
    return Cell(NOT_AVAILABLE if value is None else format(value, pattern), value)
