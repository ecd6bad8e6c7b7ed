"""The forecast of number formats: advice, a table of recipes, and a table of layers."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_perf.analysis.precision.forecast import Forecast, LayerForecast, RecipeForecast
from lightning_perf.report.labels import count_of
from lightning_perf.show.blocks import Block, Cell, Heading, Line, TableRow, rest, table
from lightning_perf.units import NOT_AVAILABLE, format_share

LAYER_RECIPES = ("fp16", "bf16", "fp8", "fp8-delayed", "mxfp8", "nvfp4")
SHORT = {"fp16": "FP16", "bf16": "BF16", "fp8": "FP8", "fp8-delayed": "delayed", "mxfp8": "MXFP8", "nvfp4": "NVFP4"}


def forecast_section(forecast: Forecast, top: int) -> Iterator[Block]:
    """Yield the advice, the number of safe layers of each recipe, and the signal-to-noise ratios of layers."""
    yield Heading("Forecast of number formats")
    yield Line(" ".join(forecast.advice), "strong")
    cost = f", {format_share(forecast.cost_share)} of the fit's time" if forecast.cost_share is not None else ""
    yield Line(f"From {count_of(forecast.samples, 'sampled step')}{cost}.", "quiet")
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


def _of(number: int, recipe: RecipeForecast) -> Cell:
    return Cell(f"{number} of {recipe.layers}", number)


def _saving(recipe: RecipeForecast) -> str:
    if not recipe.devices:
        return NOT_AVAILABLE
    saving = recipe.devices[0]
    return f"{100 * saving.least:.0f} to {100 * saving.most:.0f} % ({saving.device})"


def _worst(layer: LayerForecast) -> float:
    ratio = layer.verdict("fp8").snr_db
    return float("inf") if ratio is None else ratio


def _layer(layer: LayerForecast) -> TableRow:
    ratios = (layer.verdict(recipe).snr_db for recipe in LAYER_RECIPES)
    return (
        Cell(layer.name, troubled=not layer.verdict("fp8").safe),
        *(Cell(NOT_AVAILABLE if ratio is None else f"{ratio:.0f}", ratio) for ratio in ratios),
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
