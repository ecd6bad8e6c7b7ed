"""The forecast of number formats on the console: advice, a table of recipes, and a table of layers."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from lightning_perf.analysis.precision.forecast import Forecast, LayerForecast, RecipeForecast
from lightning_perf.report.console.layout import label, table
from lightning_perf.report.labels import count_of
from lightning_perf.terminal_text import plain, prose
from lightning_perf.units import NOT_AVAILABLE, format_share

__all__ = ["forecast_section"]

LAYER_RECIPES = ("fp16", "bf16", "fp8", "fp8-delayed", "mxfp8", "nvfp4")
SHORT = {"fp16": "FP16", "bf16": "BF16", "fp8": "FP8", "fp8-delayed": "delayed", "mxfp8": "MXFP8", "nvfp4": "NVFP4"}


def forecast_section(forecast: Forecast, top: int) -> RenderableType:
    """Return the advice, the number of safe layers of each recipe, and the signal-to-noise ratios of layers.

    Args:
        forecast: The forecast.
        top: Rows of the table of layers.
    """
    return Group(*_parts(forecast, top))


def _parts(forecast: Forecast, top: int) -> Iterator[RenderableType]:
    yield prose(" ".join(forecast.advice), "bold")
    cost = f", {format_share(forecast.cost_share)} of the fit's time" if forecast.cost_share is not None else ""
    yield Text(f"From {count_of(forecast.samples, 'sampled step')}{cost}.", style="dim")
    yield Text()
    grid = table("recipe", "safe layers", "and sizes fit", "saves of the products' time")
    for recipe in forecast.recipes:
        grid.add_row(label(recipe.title), _of(recipe.safe, recipe), _of(recipe.usable, recipe), _saving(recipe))
    yield grid
    yield Text()
    layers = sorted(forecast.layers, key=_worst)
    shown = layers[:top]
    rows = table("layer", *(SHORT[recipe] for recipe in LAYER_RECIPES), "flushed in FP8")
    for layer in shown:
        unsafe = not layer.verdict("fp8").safe
        cells = (_decibels(layer, recipe) for recipe in LAYER_RECIPES)
        rows.add_row(label(layer.name, "yellow" if unsafe else ""), *cells, format_share(_flushed(layer)))
    yield Text("Lowest signal-to-noise ratio of each layer's matrix products, in dB", style="dim")
    yield rows
    if len(layers) > len(shown):
        yield Text(f"… and {len(layers) - len(shown)} more", style="dim")
    yield plain(f"A layer is safe from {forecast.safe_db:g} dB on.", "dim")


def _of(number: int, recipe: RecipeForecast) -> str:
    return f"{number} of {recipe.layers}"


def _saving(recipe: RecipeForecast) -> str:
    if not recipe.devices:
        return NOT_AVAILABLE
    saving = recipe.devices[0]
    return f"{100 * saving.least:.0f} to {100 * saving.most:.0f} % ({saving.device})"


def _worst(layer: LayerForecast) -> float:
    ratio = layer.verdict("fp8").snr_db
    return float("inf") if ratio is None else ratio


def _decibels(layer: LayerForecast, recipe: str) -> str:
    ratio = layer.verdict(recipe).snr_db
    return NOT_AVAILABLE if ratio is None else f"{ratio:.0f}"


def _flushed(layer: LayerForecast) -> float:
    """The largest share of values that FP8 flushes in one of the layer's tensors."""
    shares = [
        row.flushed
        for tensor in layer.tensors
        for row in tensor.formats
        if row.format == ("e5m2" if tensor.tensor == "gradient" else "e4m3")
    ]
    return max(shares, default=0.0)
