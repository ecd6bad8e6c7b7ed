"""The parts of a trade-off's page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_perf.inference.counting.document import Count, Roofline
from lightning_perf.inference.results.blocks import (
    accuracy_table,
    cold_table,
    format_macs,
    latency_table,
    layer_table,
    peak_rate,
    tradeoff_table,
)
from lightning_perf.report.labels import count_of
from lightning_perf.show.blocks import (
    EVERY_ROW,
    Block,
    Figure,
    Figures,
    Heading,
    Line,
    Plot,
    Span,
    Style,
    Table,
    listing,
    table,
)
from lightning_perf.show.plots import bars, names_axis
from lightning_perf.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_flops,
    format_milliseconds,
    format_ratio,
)

if TYPE_CHECKING:
    from lightning_perf.inference.results.tradeoff import Tradeoff


def tradeoff_parts(tradeoff: Tradeoff) -> dict[str, Iterable[Block]]:
    """Return the blocks of each part of a trade-off's page. The name of a part of a cell ends with the cell's place."""
    count = tradeoff.count
    settings = (
        (
            row.variant,
            row.summary,
            ", ".join(f"{name} {value}" for name, value in (row.provenance or {}).items()),
            row.reason or "",
        )
        for row in tradeoff.rows
    )
    failed = (Line((Span(row.variant, "strong"), f" {row.reason}")) for row in tradeoff.rows if row.reason is not None)
    failures = tuple(listing(failed))
    heads = ("variant", "description", "settings", "reason for no measurement")
    parts: dict[str, Iterable[Block]] = {
        "recommendation": _recommendation(tradeoff),
        "context": [Line(" · ".join(_context(tradeoff)), "quiet")],
        "failures": [Heading("Not or only partly measured"), *failures] if failures else [],
        "outputs": [accuracy_table(tradeoff)],
        "cold": [cold_table(tradeoff)],
        "how": [table(heads, settings, "Settings", "name text text text")],
        "machine": [Heading("Machine and method"), *_machine(tradeoff)],
        "forward_pass": [] if count is None else _forward_pass(tradeoff, count),
        "least_time": [] if tradeoff.roofline is None else _least_time(tradeoff.roofline),
        "layers": [] if count is None else [layer_table(count, tradeoff.roofline, EVERY_ROW)],
    }
    if count is None:
        parts["missing"] = [Line("The operations of the original could not be counted.", label="layers")]
    for place, cell in enumerate(tradeoff.cells):
        parts[f"variants.{place}"] = [_marked(tradeoff, tradeoff_table(tradeoff, cell, intervals=True))]
        parts[f"calls.{place}"] = [_marked(tradeoff, latency_table(tradeoff, cell))]
    return parts


def _marked(tradeoff: Tradeoff, variants: Table) -> Table:
    """Return a table of variants with the recommended one first, and with marks on that and on the original."""
    marks = {tradeoff.rows[0].variant: " original"}
    if tradeoff.recommendation is not None and tradeoff.recommendation.variant is not None:
        marks[tradeoff.recommendation.variant] = " recommended"
    rows = sorted(variants.rows, key=lambda row: marks.get(row[0].text) != " recommended")
    marked = ((replace(row[0], detail=marks.get(row[0].text, "")), *row[1:]) for row in rows)
    return replace(variants, rows=tuple(marked))


def _recommendation(tradeoff: Tradeoff) -> Iterator[Line]:
    found = tradeoff.recommendation
    if found is None:
        return
    style: Style = "good" if found.variant else "strong"
    yield Line(found.variant or "none of them", style, label="Deploy", label_style="strong")
    yield Line(found.reason, label="Why", label_style="strong")
    most_ms, drop = found.max_latency_ms, found.max_accuracy_drop_points
    limits = [] if most_ms is None else [f"p90 latency at most {format_milliseconds(most_ms)}"]
    limits += [] if drop is None else [f"accuracy drop at most {drop:g} {'point' if drop == 1 else 'points'}"]
    if limits:
        yield Line("; ".join(limits), label="Limits", label_style="strong")


def _context(tradeoff: Tradeoff) -> Iterator[str]:
    machine = tradeoff.machine
    yield tradeoff.model
    yield f"inputs {'×'.join(map(str, tradeoff.input_shape))}"
    yield "float32 originals"
    yield from dict.fromkeys((machine.device, machine.cpu))
    if "torch" in machine.versions:
        yield f"torch {machine.versions['torch']}"
    yield f"lightning_perf {tradeoff.tool_version}"


def _machine(tradeoff: Tradeoff) -> Iterator[Line]:
    machine, effort = tradeoff.machine, tradeoff.effort
    yield Line(machine.device, label="Device")
    yield Line(f"{machine.cpu}, {machine.cpus} usable", label="Processor")
    yield Line(machine.platform, label="System")
    if machine.load_before is not None and machine.load_after is not None:
        yield Line(f"{machine.load_before:.2f} before, {machine.load_after:.2f} after", label="Load average")
    yield Line(", ".join(f"{name} {version}" for name, version in machine.versions.items()), label="Versions")
    what = "variant, batch size and number of threads"
    rounds = f"in {effort.rounds} rounds (method {tradeoff.method_version})"
    yield Line(f"{effort.seconds:g} s per {what}, {rounds}", label="Effort")


MOST_BARS = 15

COLORS = {"compute": "bound_by_compute", "memory": "bound_by_memory"}


def _forward_pass(tradeoff: Tradeoff, count: Count) -> Iterator[Block]:
    """Yield the arithmetic and the memory traffic of one forward pass."""
    bounds, latencies = tradeoff.roofline, tradeoff.rows[0].latencies if tradeoff.rows else ()
    unused = f"{format_count(count.unused_parameters)} unused" if count.unused_parameters else ""
    figures = [
        Figure("Parameters", format_count(count.parameters), unused),
        Figure("In memory", format_bytes(count.size_bytes)),
        Figure("MACs", format_macs(count.macs), definition="macs"),
        Figure("FLOPs", format_flops(count.flops), definition="macs"),
        Figure("Bytes moved", format_bytes(count.bytes_moved), definition="bytes-moved"),
        Figure("FLOPs per byte", format_count(count.arithmetic_intensity), definition="bytes-moved"),
    ]
    if bounds is not None:
        figures.append(Figure("Least time", format_milliseconds(bounds.bound_ms), definition="least-time"))
        layers = format_milliseconds(bounds.layer_by_layer_ms)
        figures.append(Figure("Layer by layer", layers, "at least", "least-time"))
    if latencies:
        p50_ms = latencies[0].p50_ms
        times = f"{format_ratio(p50_ms / bounds.bound_ms)} the least time" if bounds is not None else ""
        figures.append(Figure("Time of the original", format_milliseconds(p50_ms), times, "latency"))
    yield Heading(
        "One forward pass", definition="macs", aside=f"one input of {'×'.join(map(str, count.input_shape[1:]))}"
    )
    yield Figures(tuple(figures))
    lacking = len(count.uncounted)
    if lacking:
        layers = count_of(lacking, "layer")
        yield Line(f"FLOPs are too low, because no formula is known for operators in {layers}.", "warning")


def _least_time(roofline: Roofline) -> Iterator[Block]:
    """Yield the layers with the longest least time."""
    layers = sorted((each for each in roofline.layers if each.bound_ms > 0), key=lambda each: -each.bound_ms)[
        :MOST_BARS
    ]
    if not layers:
        return
    peaks = roofline.peaks
    rates = f"{peak_rate(peaks)} and {format_bandwidth(peaks.bandwidth_bytes_per_s)}"
    names = [layer.path or "(the model)" for layer in layers]
    texts = [
        f"{name}, {layer.kind}\n"
        f"compute {format_milliseconds(layer.compute_ms)}, memory {format_milliseconds(layer.memory_ms)}"
        for name, layer in zip(names, layers, strict=True)
    ]
    times, colors = [1000 * layer.bound_ms for layer in layers], [COLORS[layer.limit] for layer in layers]
    aside = " · ".join((peaks.device, peaks.dtype, rates, peaks.source))
    yield Heading("Least time by layer", definition="least-time", aside=aside)
    yield Plot(
        "The layers with the longest least time. The table has all of them.",
        (bars(times, list(range(len(layers))), texts, colors, orientation="h"),),
        {"xaxis": {"title": "least time, µs"}, "yaxis": names_axis(names)},
        height=64 + 24 * len(layers),
        legend=(("bound by arithmetic", COLORS["compute"]), ("bound by memory", COLORS["memory"])),
    )
