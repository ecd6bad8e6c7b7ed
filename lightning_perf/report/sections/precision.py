"""The numerics of a run: precision, mistakes, loss scale, FP8, comparison with FP32, and the forecast of formats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from lightning_perf.analysis.precision.forecast import DeviceSaving, Forecast, LayerForecast
from lightning_perf.analysis.precision.scales import Fp8Layers, ShadowDrift
from lightning_perf.findings.pages import rule_page_url
from lightning_perf.run_files.numerics.precision import (
    BadRun,
    LayerUnderflow,
    LossScaleHistory,
    NumericsDrift,
    PrecisionMistake,
    PrecisionSetting,
    RunPrecision,
    UnderflowTable,
    loss_text,
)
from lightning_perf.show.blocks import (
    EVERY_ROW,
    Block,
    Cell,
    Heading,
    Line,
    Plot,
    Span,
    Table,
    TableRow,
    listing,
    rest,
    table,
)
from lightning_perf.show.plots import Trace, level, line, points
from lightning_perf.units import NOT_AVAILABLE, counted, format_count, format_duration, format_share, with_minus

MAX_ORIGINS = 3
MAX_POINTS = 8


def fp32_section(precision: RunPrecision | None, shadow: ShadowDrift | None, top: int) -> Iterator[Block]:
    """Yield all that batches showed when they were run again; nothing if none was."""
    blocks: list[Block] = []
    bad_run = precision.bad_run if precision is not None else None
    if bad_run is not None:
        blocks += bad_run_blocks(bad_run)
    if precision is not None and precision.loss_scale is not None:
        located = [event for event in precision.loss_scale.events if event.origin is not None]
        blocks += [
            Line(f"Step {event.step} overflowed: {event.origin.value} from {event.origin}.")
            for event in located[:MAX_ORIGINS]
            if event.origin is not None
        ]
    if precision is not None and precision.numerics is not None:
        blocks += first_steps(precision.numerics)
    if shadow is not None:
        blocks += shadow_blocks(shadow, top)
    if blocks:
        yield Heading("Comparison with FP32" if bad_run is None else "Diagnosis")
        yield from blocks


def bad_run_summary(precision: RunPrecision | None) -> Iterator[Line]:
    """Yield the error of a run with a bad loss and its fix in a line: no saving of time matters as much."""
    if precision is not None and precision.bad_run is not None:
        found = precision.bad_run
        yield Line((f"{found.title}. ", Span(f"Fix: {found.action}", "good")), label="Error", label_style="bad")


def bad_run_blocks(found: BadRun) -> Iterator[Block]:
    """Yield the diagnosis of a run that went wrong: the symptom, facts from replays of the batch, and the cure."""
    yield Line(found.title, "bad")
    yield from listing([*found.evidence, Line((Span("Fix: ", "good"), found.action))], indent=3)


def first_steps(drift: NumericsDrift) -> Iterator[Block]:
    """Yield how far the first steps are from those in FP32."""
    batches = range(1, len(drift.mixed_losses) + 1)
    losses = {drift.precision: drift.mixed_losses, "fp32": drift.fp32_losses}
    yield from _losses("batch", batches, losses, None if len(batches) > 16 else 1)
    beyond = drift.beyond_seed_noise
    mixed, fp32, low, high = map(loss_text, (drift.mixed_end, drift.fp32_end, drift.expected_low, drift.expected_high))
    yield Line(
        f"After {counted(len(drift.mixed_losses), 'batch', 'batches')} the loss is {mixed}, in FP32 {fp32}. With other "
        f"seeds, {low}–{high} is expected: {'beyond' if beyond else 'within'} seed noise.",
        "warning" if beyond else "plain",
    )


def shadow_blocks(drift: ShadowDrift, top: int) -> Iterator[Block]:
    """Yield the summary of the shadow steps, some of them, and the layers."""
    steps = [point.step for point in drift.points]
    gradients = [None if point.cosine is None else max(1 - point.cosine, LEAST_DRIFT) for point in drift.points]
    title = "Drift of the gradient: 1 − cosine"
    yield Heading(title, 4)
    gradient = _series("step", steps, "1 − cosine", gradients, "accent")
    yield Plot(title, (gradient,), {"xaxis": {"title": "step"}, "yaxis": {"type": "log"}})
    losses = {"run": [point.loss for point in drift.points], "fp32": [point.fp32_loss for point in drift.points]}
    yield from _losses("step", steps, losses, None)
    cost = f", {format_share(drift.cost_share)} of the fit's time" if drift.cost_share is not None else ""
    yield Line(f"{counted(len(drift.points), 'shadow step')}{cost}.", "quiet")
    yield Line(" ".join(drift.summary), "warning" if drift.drifting else "plain")
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


def _layers(drift: ShadowDrift, top: int) -> Table:
    rows: list[TableRow] = []
    for layer in drift.layers[:top]:
        lowest, highest = _number(layer.lowest_norm_ratio, ".3f"), _number(layer.highest_norm_ratio, ".3f")
        step = Cell(NOT_AVAILABLE if layer.lowest_step is None else str(layer.lowest_step), layer.lowest_step)
        cosines = _number(layer.lowest_cosine, ".5f"), step, _number(layer.mean_cosine, ".5f")
        ratios = Cell(f"{lowest.text}–{highest.text}", layer.lowest_norm_ratio)
        rows.append((Cell(layer.name, troubled=layer.drifts), *cosines, ratios, layer.unknown))
    return table(
        ("layer", "lowest cosine", "at step", "mean cosine", "norm ratio", "unknown"),
        rows,
        kinds="code figure figure figure figure count",
        definitions={"lowest cosine": "gradient-cosine", "mean cosine": "gradient-cosine", "norm ratio": "norm-ratio"},
        extra=("unknown",),
    )


def _number(value: float | None, pattern: str) -> Cell:
    return Cell(NOT_AVAILABLE if value is None else with_minus(format(value, pattern)), value)


SHORT = {"fp16": "FP16", "bf16": "BF16", "fp8": "FP8", "fp8-delayed": "delayed", "mxfp8": "MXFP8", "nvfp4": "NVFP4"}
LAYER_FACTS = ("worst product in FP8", "sizes that do not fit FP8", "rows", "inputs", "outputs")


def forecast_section(forecast: Forecast, top: int) -> Iterator[Block]:
    """Yield the advice, the safe layers of each recipe, and the ratios of layers. With all rows also every tensor."""
    yield Heading("Forecast of number formats", definition="safe-layer")
    yield Line(" ".join(forecast.advice), "strong")
    cost = f", {format_share(forecast.cost_share)} of the fit's time" if forecast.cost_share is not None else ""
    yield Line(f"From {counted(forecast.samples, 'sampled step')}{cost}.", "quiet")
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
        map(_layer_forecast, layers[:top]),
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
    rows.sort(key=lambda row: -row[3])
    return table(
        ("layer", "tensor", "format", "flushed to zero", "saturated", "changed by over 12.5 %"),
        rows,
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


def _layer_forecast(layer: LayerForecast) -> TableRow:
    fp8 = layer.verdicts["fp8"]
    # The usual mixture: E4M3 for weights and activations, and E5M2 for gradients.
    shares = (
        (tensor, formats.get("e5m2" if tensor == "gradient" else "e4m3")) for tensor, formats in layer.tensors.items()
    )
    return (
        Cell(layer.name, troubled=not fp8.safe),
        *(_number(layer.verdicts[recipe].snr_db, ".1f") for recipe in SHORT),
        max((each.flushed for _, each in shares if each is not None), default=0.0),
        fp8.product or "",
        ", ".join(fp8.misaligned),
        layer.rows,
        layer.inputs,
        layer.outputs,
    )


MAX_KEPT = 6


def precision_section(precision: RunPrecision, top: int) -> Iterator[Block]:
    """Yield the precision, the loss scale and gradient underflow."""
    yield Heading("Precision")
    yield from _setting(precision.setting)
    if precision.loss_scale is not None:
        yield from _loss_scale(precision.loss_scale)
    if precision.underflow is not None:
        yield from _underflow(precision.underflow, top)


def precision_pages(precision: RunPrecision) -> dict[str, Iterable[Block]]:
    """Return the blocks of each part of the page on the precision."""
    parts: dict[str, Iterable[Block]] = {"setting": [Heading("Setting"), *_setting(precision.setting)]}
    if precision.bad_run is not None:
        parts["diagnosis"] = [Heading("Diagnosis"), *bad_run_blocks(precision.bad_run)]
    if precision.mistakes:
        parts["mistakes"] = mistakes_section(precision.mistakes)
    if (history := precision.loss_scale) is not None:
        heading = Heading("Loss scale", definition="loss-scale")
        parts["loss_scale"] = [heading, scale_chart(history), *_loss_scale(history), _scale_events(history)]
    if precision.underflow is not None:
        heading = Heading("Gradient underflow by layer", definition="subnormal-share")
        parts["underflow"] = [heading, *_underflow(precision.underflow, EVERY_ROW)]
    if precision.numerics is not None:
        parts["numerics"] = [Heading("Compared with FP32", definition="seed-noise"), *first_steps(precision.numerics)]
    return parts


def _scale_events(history: LossScaleHistory) -> Table:
    return table(
        ("step", "change", "new scale", "wasted", "where"),
        (
            (
                event.step,
                "overflow: step skipped" if event.kind == "overflow" else event.kind,
                event.scale,
                event.wasted_ns or None,
                "" if event.origin is None else f"{event.origin.value} from {event.origin}",
            )
            for event in history.events
        ),
        "Changes of the loss scale",
        "count text count duration text",
    )


def mistakes_section(mistakes: Sequence[PrecisionMistake]) -> Iterator[Block]:
    """Yield one paragraph for each mistake in the use of 16-bit precision: its place, evidence and fix."""
    yield Heading("Mistakes in mixed precision")
    yield Line("Each fix changes the training, its checkpoints or its logs on purpose. Compare the loss.", "quiet")
    for number, mistake in enumerate(mistakes, start=1):
        yield Line(mistake_text(mistake), label=f"{number}.", gap=1)
        yield from listing([*mistake.evidence, Line((Span("Fix: ", "good"), mistake.action))], indent=3)
    yield Line(("About a mistake: ", Span(f"lightning-perf explain {mistakes[0].kind}", "command")))


def mistake_text(mistake: PrecisionMistake) -> tuple[str | Span, ...]:
    """Return the title of a mistake with its place, its ID as a link, and its severity."""
    severity = Span(mistake.severity, "bad" if mistake.severity == "high" else "warning")
    linked = Span(mistake.kind, link=rule_page_url(mistake.kind))
    return f"{mistake.title}{mistake.where}", "  [", linked, " · ", severity, "]"


def _setting(setting: PrecisionSetting) -> Iterator[Line]:
    facts = [setting.precision, str(setting.fp32)]
    if setting.weight_cache is not None:
        facts.append(f"autocast's weight cache {'on' if setting.weight_cache else 'off'}")
    yield Line(" · ".join(facts))
    if setting.note is not None:
        yield Line(setting.note, "warning")
    if setting.keep_fp32:
        more = len(setting.keep_fp32) - MAX_KEPT
        yield Line(f"Kept in FP32: {', '.join(setting.keep_fp32[:MAX_KEPT])}{f' and {more} more' if more > 0 else ''}")


def _loss_scale(history: LossScaleHistory) -> Iterator[Line]:
    scales = history.scales
    first, last, low, high = map(format_count, (scales[0], scales[-1], min(scales), max(scales)))
    between = "" if {low, high} <= {first, last} else f" ({low}–{high})"
    yield Line(
        f"Loss scale {first} at the start, {last} at the end{between} · "
        f"{format_count(history.skipped_steps)} of {counted(history.attempts, 'step')} skipped, "
        f"{format_duration(history.wasted_ns)} wasted · goodput {format_share(history.goodput)}"
    )
    if not history.finished:
        yield Line("The run did not end normally: this is its last known state.", "warning")
    if history.scheduler_steps_on_skips:
        yield Line(
            f"Learning-rate schedulers made {counted(history.scheduler_steps_on_skips, 'step')} on skipped optimizer "
            "steps, so the schedule is that far ahead of the weights.",
            "warning",
        )


def _underflow(found: UnderflowTable, top: int) -> Iterator[Block]:
    rows = sorted(found.layers, key=lambda layer: (not layer.underflows, -layer.subnormal_share))
    named = len(found.underflowing)
    yield Line(
        f"Gradients of {counted(found.samples, 'sampled step')}: "
        + (f"{counted(named, 'layer')} of {len(rows)} underflow in fp16" if named else "no layer underflows in fp16")
        + (f" · the scale may double {found.headroom_doublings}×" if found.headroom_doublings is not None else ""),
        "warning" if named else "plain",
    )
    shown = rows if top == EVERY_ROW else [row for row in rows if row.underflows or row.subnormal_share > 0][:top]
    yield table(
        ("layer", "computed in", "subnormal", "zero", "median", "headroom"),
        map(_layer, shown),
        kinds="code figure figure share figure figure",
        definitions={"subnormal": "subnormal-share", "zero": "zero-share", "headroom": "scale-headroom"},
    )
    if found.advice is not None:
        yield Line(f"{found.advice.text}.", "strong")


def _layer(row: LayerUnderflow) -> TableRow:
    headroom = NOT_AVAILABLE if row.headroom_doublings is None else with_minus(f"{row.headroom_doublings}×")
    median = NOT_AVAILABLE if row.median_exponent is None else f"2^{with_minus(str(row.median_exponent))}"
    return (
        Cell(row.name, troubled=row.underflows),
        row.arithmetic,
        Cell(
            "all vanished" if row.vanished else format_share(row.subnormal_share),
            row.subnormal_share,
            bar=row.subnormal_share,
        ),
        row.zero_share,
        Cell(median, row.median_exponent),
        Cell(headroom, row.headroom_doublings),
    )


def fp8_section(found: Fp8Layers, top: int) -> Iterator[Block]:
    """Yield the summary, and the tensors that saturate or underflow most."""
    yield Heading("FP8 layers", definition="fp8-layers")
    yield Line(found.summary, "warning" if any(row.troubled for row in found.rows) else "plain")
    yield Line(f"{counted(found.samples, 'sampled step')}, {found.library}.", "quiet")
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
        f"Loss scale over the steps, with {counted(len(overflows), 'overflow')}",
        tuple(traces),
        {"showlegend": bool(overflows), "xaxis": {"title": "step"}, "yaxis": axis},
    )


def _losses(
    unit: str, places: Sequence[int], series: Mapping[str, Sequence[float | None]], every: int | None
) -> Iterator[Block]:
    title = "Loss of the same batches"
    colors = zip(series, ("accent", "ink-soft"), strict=True)
    yield Heading(title, 4)
    yield Plot(
        title,
        tuple(_series(unit, places, name, series[name], color) for name, color in colors),
        {
            "showlegend": True,
            "xaxis": {"title": unit, "dtick": every},
            "yaxis": {"title": "loss", "measured": True},
        },
    )


def _series(unit: str, places: Sequence[int], name: str, values: Sequence[float | None], color: str) -> Trace:
    texts = [f"{loss_text(value)} {name}\n{unit} {place}" for place, value in zip(places, values, strict=True)]
    return line(list(places), list(values), texts, color, marks=True, name=name)


def snr_chart(forecast: Forecast) -> Plot:
    """Return how each recipe would round each layer."""
    names = [layer.name for layer in forecast.layers]
    traces = []
    for name, color in RECIPES.items():
        ratios = [layer.verdicts[name].snr_db for layer in forecast.layers]
        texts = [f"{_number(ratio, '.1f').text} dB\n{layer}" for ratio, layer in zip(ratios, names, strict=True)]
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
