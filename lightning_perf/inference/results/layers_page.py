"""The parts of a trade-off's page on one forward pass of the original: its work and its least time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lightning_perf.inference.counting.document import Count
from lightning_perf.inference.counting.roofline import Roofline
from lightning_perf.report.labels import count_of
from lightning_perf.show.blocks import Block, Figure, Figures, Heading, Line, Plot
from lightning_perf.show.plots import bars, names_axis
from lightning_perf.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_flop_rate,
    format_flops,
    format_milliseconds,
    format_ratio,
)

if TYPE_CHECKING:
    from lightning_perf.inference.results.tradeoff import Tradeoff

MOST_BARS = 15

COLORS = {"compute": "bound_by_compute", "memory": "bound_by_memory"}


def forward_pass(tradeoff: Tradeoff, count: Count) -> Iterator[Block]:
    """Yield the arithmetic and the memory traffic of one forward pass."""
    bounds, latencies = tradeoff.roofline, tradeoff.rows[0].latencies if tradeoff.rows else ()
    unused = f"{format_count(count.unused_parameters)} unused" if count.unused_parameters else ""
    figures = [
        Figure("Parameters", format_count(count.parameters), unused),
        Figure("In memory", format_bytes(count.size_bytes)),
        Figure("MACs", format_flops(count.macs).replace("FLOPs", "MACs"), definition="macs"),
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


def least_time(roofline: Roofline) -> Iterator[Block]:
    """Yield the layers with the longest least time."""
    layers = sorted((each for each in roofline.layers if each.bound_ms > 0), key=lambda each: -each.bound_ms)[
        :MOST_BARS
    ]
    if not layers:
        return
    peaks = roofline.peaks
    rate = format_flop_rate(peaks.flops_per_s)
    if peaks.convolution_flops_per_s:
        rate += f" (convolutions {format_flop_rate(peaks.convolution_flops_per_s)})"
    rates = f"{rate} and {format_bandwidth(peaks.bandwidth_bytes_per_s)}"
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
