"""The forecast of number formats: advice, a table of recipes, and a table of layers."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_perf.analysis.precision.forecast import DeviceSaving, Forecast, LayerForecast, RecipeForecast
from lightning_perf.report.labels import count_of
from lightning_perf.report.sections.precision_charts import snr_chart
from lightning_perf.show.blocks import Block, Cell, Heading, Line, TableRow, rest, table
from lightning_perf.units import NOT_AVAILABLE, format_share, with_minus

LAYER_RECIPES = ("fp16", "bf16", "fp8", "fp8-delayed", "mxfp8", "nvfp4")
LAYER_FACTS = ("worst product in FP8", "sizes that do not fit FP8", "rows", "inputs", "outputs")
SHORT = {"fp16": "FP16", "bf16": "BF16", "fp8": "FP8", "fp8-delayed": "delayed", "mxfp8": "MXFP8", "nvfp4": "NVFP4"}


def forecast_section(forecast: Forecast, top: int) -> Iterator[Block]:
    """Yield the advice, the number of safe layers of each recipe, and the signal-to-noise ratios of layers."""
    yield from _advice(forecast)
    yield Line()
    yield table(
        ("recipe", "safe layers", "and sizes fit", "saves of the products' time"),
        ((each.title, _of(each.safe, each), _of(each.usable, each), _saving(each)) for each in forecast.recipes),
    )
    yield Line()
    yield Line("Lowest signal-to-noise ratio of each layer's matrix products, in dB", "quiet")
    layers = sorted(forecast.layers, key=_worst)
    heads = ("layer", *(SHORT[recipe] for recipe in LAYER_RECIPES), "flushed in FP8")
    yield table(heads, map(_layer, layers[:top]), kinds="name" + " figure" * len(LAYER_RECIPES) + " share")
    yield from rest(len(layers) - top, "", hint="")
    yield Line(f"A layer is safe from {forecast.safe_db:g} dB on.", "quiet")


def forecast_page(forecast: Forecast) -> Iterator[Block]:
    """Yield the advice, and tables of all recipes, layers and tensors."""
    yield from _advice(forecast)
    yield snr_chart(forecast)
    yield Line(f"Layers above the dashed line, {forecast.safe_db:g} dB, are safe.")
    yield table(
        ("recipe", "safe layers", "with fitting sizes", "keep out", "saves of the products' time"),
        (
            (
                each.title,
                _of(each.safe, each),
                _of(each.usable, each),
                ", ".join(each.keep_out),
                "; ".join(f"{saving.device}: {_range(saving)}" for saving in each.devices),
            )
            for each in forecast.recipes
        ),
        "Layers that each recipe could be used for",
        "name figure figure code text",
        definitions={"safe layers": "safe-layer"},
    )
    titles = {each.recipe: each.title for each in forecast.recipes}
    yield table(
        ("layer", *titles.values(), *LAYER_FACTS),
        (
            (
                Cell(layer.name, troubled=not layer.verdict("fp8").safe),
                *(_decibels(layer.verdict(recipe).snr_db, 1) for recipe in titles),
                layer.verdict("fp8").product or "",
                ", ".join(layer.verdict("fp8").misaligned),
                layer.rows,
                layer.inputs,
                layer.outputs,
            )
            for layer in sorted(forecast.layers, key=_worst)
        ),
        "Lowest signal-to-noise ratio of each layer's matrix products, in dB",
        "code" + " figure" * len(titles) + " text text count count count",
        definitions=dict.fromkeys(titles.values(), "signal-to-noise-ratio"),
        extra=LAYER_FACTS[1:],
    )
    tensors = [(layer, each) for layer in forecast.layers for each in layer.tensors]
    rounded = [(layer, tensor, each) for layer, tensor in tensors for each in tensor.formats]
    yield table(
        ("layer", "tensor", "format", "flushed to zero", "saturated", "changed by over 12.5 %"),
        (
            (layer.name, tensor.tensor, each.format, each.flushed, each.saturated, each.coarse)
            for layer, tensor, each in sorted(rounded, key=lambda row: -row[2].flushed)
        ),
        "Rounding of weights, activations and gradients",
        "code text text share share share",
        definitions={
            "flushed to zero": "flushed-share",
            "saturated": "saturated-share",
            "changed by over 12.5 %": "coarse-share",
        },
    )


def _advice(forecast: Forecast) -> Iterator[Block]:
    yield Heading("Forecast of number formats", definition="safe-layer")
    yield Line(" ".join(forecast.advice), "strong")
    cost = f", {format_share(forecast.cost_share)} of the fit's time" if forecast.cost_share is not None else ""
    yield Line(f"From {count_of(forecast.samples, 'sampled step')}{cost}.", "quiet")


def _decibels(ratio_db: float | None, digits: int = 0) -> Cell:
    return Cell(NOT_AVAILABLE if ratio_db is None else with_minus(f"{ratio_db:.{digits}f}"), ratio_db)


def _of(number: int, recipe: RecipeForecast) -> Cell:
    return Cell(f"{number} of {recipe.layers}", number)


def _saving(recipe: RecipeForecast) -> str:
    if not recipe.devices:
        return NOT_AVAILABLE
    saving = recipe.devices[0]
    return f"{_range(saving)} ({saving.device})"


def _range(saving: DeviceSaving) -> str:
    return f"{100 * saving.least:.0f} to {100 * saving.most:.0f} %"


def _worst(layer: LayerForecast) -> float:
    ratio = layer.verdict("fp8").snr_db
    return float("inf") if ratio is None else ratio


def _layer(layer: LayerForecast) -> TableRow:
    return (
        Cell(layer.name, troubled=not layer.verdict("fp8").safe),
        *(_decibels(layer.verdict(recipe).snr_db) for recipe in LAYER_RECIPES),
        _flushed(layer),
    )


def _flushed(layer: LayerForecast) -> float:
    """The largest share of values that FP8 flushes in one of the layer's tensors."""
    shares = [
        row.flushed
        for tensor in layer.tensors
        for row in tensor.formats
        if row.format == ("e5m2" if tensor.tensor == "gradient" else "e4m3")
    ]
    return max(shares, default=0.0)
