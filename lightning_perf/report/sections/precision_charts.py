"""Charts of the page on precision: loss scale, comparison with FP32, shadow steps, signal-to-noise ratios."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lightning_perf.analysis.precision.forecast import Forecast
from lightning_perf.analysis.precision.shadow import ShadowDrift, ShadowPoint
from lightning_perf.report.labels import count_of
from lightning_perf.run_files.numerics.precision import LossScaleHistory, NumericsDrift, loss_text
from lightning_perf.show.blocks import Block, Heading, Plot
from lightning_perf.show.plots import Trace, level, line, points
from lightning_perf.units import NOT_AVAILABLE, with_minus

RECIPES = {
    "bf16": "idle",
    "fp8-delayed": "communication",
    "fp8": "device_compute",
    "mxfp8": "host_compute",
    "nvfp4": "input",
}
"""Colours of the recipes in the chart of signal-to-noise ratios."""

NAMED_LAYERS = 24
"""With more layers, an axis has no names."""

LEAST_DRIFT = 1e-12
"""The smallest value on the logarithmic axis of drifts."""


def scale_chart(history: LossScaleHistory) -> Plot:
    """Return the loss scale over the steps, with its overflows."""
    events = history.events
    overflows = [event for event in events if event.kind == "overflow"]
    steps, scales = [event.step for event in events], [event.scale for event in events]
    texts = [f"{event.scale:,.0f}\nstep {event.step}" for event in events]
    traces = [line(steps, scales, texts, "accent", steps=True, name="loss scale")]
    if overflows:
        texts = [f"overflow, scale now {event.scale:,.0f}\nstep {event.step}" for event in overflows]
        look: Trace = {"name": "overflow, step skipped", "look": {"line": {"width": 0}}}
        places = [event.step for event in overflows], [event.scale for event in overflows]
        traces.append(points(*places, texts, "high", "x", **look))
    axis = {"title": "loss scale", "type": "log", "dtick": 0.6020599913, "tickformat": ",.0f"}
    return Plot(
        f"Loss scale over the steps, with {count_of(len(overflows), 'overflow')}",
        tuple(traces),
        {"showlegend": bool(overflows), "xaxis": {"title": "step"}, "yaxis": axis},
    )


def drift_charts(drift: NumericsDrift) -> Iterator[Block]:
    """Yield the losses of a mixed run and of its FP32 replay."""
    yield Heading("Loss of the same batches", 4)
    traces = []
    for name, losses, color in (
        (drift.precision, drift.mixed_losses, "accent"),
        ("fp32", drift.fp32_losses, "ink-soft"),
    ):
        batches = list(range(1, len(losses) + 1))
        texts = [f"{loss_text(loss)} {name}\nbatch {batch}" for batch, loss in zip(batches, losses, strict=True)]
        traces.append(line(batches, losses, texts, color, marks=True, name=name))
    every = None if len(drift.mixed_losses) > 16 else 1
    yield Plot(
        "Losses in mixed precision and in FP32",
        tuple(traces),
        {
            "showlegend": True,
            "xaxis": {"title": "batch", "dtick": every},
            "yaxis": {"title": "loss", "measured": True},
        },
    )


def shadow_charts(drift: ShadowDrift) -> Iterator[Block]:
    """Yield the drift of the gradients and of the loss over the run."""
    title = "Drift of the gradient: 1 − cosine"
    yield Heading(title, 4)
    gradient = _series(drift, "1 − cosine", "input", _gradient_drift)
    yield Plot(title, (gradient,), {"xaxis": {"title": "step"}, "yaxis": {"type": "log"}})
    yield Heading("Loss of the same batches", 4)
    losses = (
        _series(drift, "run", "input", lambda point: point.loss),
        _series(drift, "fp32", "host_compute", lambda point: point.fp32_loss),
    )
    axes = {"xaxis": {"title": "step"}, "yaxis": {"title": "loss"}}
    yield Plot("Loss of the same batches", losses, {"showlegend": True, **axes})


def _gradient_drift(point: ShadowPoint) -> float | None:
    return None if point.cosine is None else max(1 - point.cosine, LEAST_DRIFT)


def _series(drift: ShadowDrift, name: str, color: str, value: Callable[[ShadowPoint], float | None]) -> Trace:
    values = [value(point) for point in drift.points]
    texts = [f"{loss_text(found)} {name}\nstep {point.step}" for found, point in zip(values, drift.points, strict=True)]
    return line([point.step for point in drift.points], values, texts, color, marks=True, name=name)


def snr_chart(forecast: Forecast) -> Plot:
    """Return how each recipe would round each layer."""
    names = [layer.name for layer in forecast.layers]
    traces = []
    for name, color in RECIPES.items():
        ratios = [layer.verdicts[name].snr_db for layer in forecast.layers]
        shown = [NOT_AVAILABLE if ratio is None else with_minus(f"{ratio:.1f}") for ratio in ratios]
        texts = [f"{ratio} dB\n{layer}" for ratio, layer in zip(shown, names, strict=True)]
        look: Trace = {"name": forecast.recipes[name].title, "look": {"size": 6, "line": {"width": 0}}}
        traces.append(points(names, ratios, texts, color, **look))
    axis = {"title": "layers in the order of the model", "type": "category"}
    return Plot(
        "Signal-to-noise ratio of each layer by recipe",
        tuple(traces),
        {
            "showlegend": True,
            "xaxis": {**axis, "showticklabels": len(names) <= NAMED_LAYERS},
            "yaxis": {"title": "signal-to-noise ratio, dB"},
            "shapes": [level(forecast.safe_db)],
        },
        height=300,
    )
