"""The forecast of number formats: advice, a table of recipes, and a table of layers."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_perf.analysis.precision.forecast import DeviceSaving, Forecast, LayerForecast, LayerVerdict
from lightning_perf.report.labels import count_of
from lightning_perf.report.sections.precision_charts import snr_chart
from lightning_perf.show.blocks import EVERY_ROW, Block, Cell, Heading, Line, Table, TableRow, rest, table
from lightning_perf.units import NOT_AVAILABLE, format_share, with_minus

SHORT = {"fp16": "FP16", "bf16": "BF16", "fp8": "FP8", "fp8-delayed": "delayed", "mxfp8": "MXFP8", "nvfp4": "NVFP4"}
LAYER_FACTS = ("worst product in FP8", "sizes that do not fit FP8", "rows", "inputs", "outputs")


def forecast_section(forecast: Forecast, top: int) -> Iterator[Block]:
    """Yield the advice, the safe layers of each recipe, and the ratios of layers. With all rows also every tensor."""
    yield Heading("Forecast of number formats", definition="safe-layer")
    yield Line(" ".join(forecast.advice), "strong")
    cost = f", {format_share(forecast.cost_share)} of the fit's time" if forecast.cost_share is not None else ""
    yield Line(f"From {count_of(forecast.samples, 'sampled step')}{cost}.", "quiet")
    yield snr_chart(forecast)
    total = len(forecast.layers)
    yield table(
        ("recipe", "safe layers", "and sizes fit", "saves of the products' time", "on other devices", "keep out"),
        (
            (
                each.title,
                Cell(f"{each.safe} of {total}", each.safe),
                Cell(f"{each.usable} of {total}", each.usable),
                "; ".join(map(_saving, each.devices[:1])) or NOT_AVAILABLE,
                "; ".join(map(_saving, each.devices[1:])),
                ", ".join(each.keep_out),
            )
            for each in forecast.recipes.values()
        ),
        kinds="name figure figure text text code",
        definitions={"safe layers": "safe-layer"},
        extra=("on other devices", "keep out"),
    )
    yield Line("Lowest signal-to-noise ratio of each layer's matrix products, in dB", "quiet")
    layers = sorted(forecast.layers, key=_worst)
    yield table(
        ("layer", *SHORT.values(), "flushed in FP8", *LAYER_FACTS),
        map(_layer, layers[:top]),
        kinds="code" + " figure" * len(SHORT) + " share text text count count count",
        definitions=dict.fromkeys(SHORT.values(), "signal-to-noise-ratio"),
        extra=LAYER_FACTS,
    )
    yield from rest(len(layers) - top, "", hint="")
    yield Line(f"A layer is safe from {forecast.safe_db:g} dB on.", "quiet")
    if top == EVERY_ROW:
        yield _tensors(forecast)


def _tensors(forecast: Forecast) -> Table:
    rows = [
        (layer.name, tensor, number_format, shares.flushed, shares.saturated, shares.coarse)
        for layer in forecast.layers
        for tensor, formats in layer.tensors.items()
        for number_format, shares in formats.items()
    ]
    return table(
        ("layer", "tensor", "format", "flushed to zero", "saturated", "changed by over 12.5 %"),
        sorted(rows, key=lambda row: -row[3]),
        "Rounding of weights, activations and gradients",
        "code text text share share share",
        definitions={
            "flushed to zero": "flushed-share",
            "saturated": "saturated-share",
            "changed by over 12.5 %": "coarse-share",
        },
    )


def _saving(saving: DeviceSaving) -> str:
    return f"{100 * saving.least:.0f} to {100 * saving.most:.0f} % ({saving.device})"


def _worst(layer: LayerForecast) -> float:
    ratio = layer.verdicts["fp8"].snr_db
    return float("inf") if ratio is None else ratio


def _layer(layer: LayerForecast) -> TableRow:
    fp8 = layer.verdicts["fp8"]
    # The usual mixture: E4M3 for weights and activations, and E5M2 for gradients.
    shares = (
        (tensor, formats.get("e5m2" if tensor == "gradient" else "e4m3")) for tensor, formats in layer.tensors.items()
    )
    return (
        Cell(layer.name, troubled=not fp8.safe),
        *(_decibels(layer.verdicts[recipe]) for recipe in SHORT),
        max((each.flushed for _, each in shares if each is not None), default=0.0),
        fp8.product or "",
        ", ".join(fp8.misaligned),
        layer.rows,
        layer.inputs,
        layer.outputs,
    )


def _decibels(verdict: LayerVerdict) -> Cell:
    ratio_db = verdict.snr_db
    return Cell(NOT_AVAILABLE if ratio_db is None else with_minus(f"{ratio_db:.1f}"), ratio_db)
