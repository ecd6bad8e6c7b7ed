"""The blocks of a trade-off, and of the latency of untrained backbones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lightning_perf.inference.counting.document import Count, Peaks, Roofline
from lightning_perf.inference.measurement.measure import Accuracy
from lightning_perf.show.blocks import Block, Cell, Line, Table, TableRow, listing, table
from lightning_perf.statistics.values import Estimate
from lightning_perf.units import (
    NOT_AVAILABLE,
    counted,
    format_bytes,
    format_count,
    format_flop_rate,
    format_flops,
    format_milliseconds,
    format_ratio,
    format_share,
)

if TYPE_CHECKING:
    from lightning_perf.inference.results import tradeoff as results
    from lightning_perf.inference.results.tradeoff import Sweep, Tradeoff


def tradeoff_blocks(tradeoff: Tradeoff, layers: int) -> Iterator[Block]:
    """Yield the recommendation, the model, the tables, and remarks, with the layers that do the most arithmetic."""
    recommendation = tradeoff.recommendation
    if recommendation is not None:
        yield Line(recommendation.variant or "no variant", "strong", label="Deploy ", label_style="strong")
        yield Line(recommendation.reason, label="Why    ", label_style="strong")
    shape = "×".join(map(str, tradeoff.input_shape))
    model = f"{tradeoff.model}, inputs {shape}, float32 originals, on {tradeoff.machine.device}"
    yield Line(model, label="Model  ", label_style="strong")
    if tradeoff.count is not None:
        yield Line(_count_line(tradeoff, tradeoff.count), label="Work   ", label_style="strong")
    yield tradeoff_table(tradeoff, tradeoff.cells[0])
    yield from (latency_table(tradeoff, cell) for cell in tradeoff.cells)
    yield accuracy_table(tradeoff)
    yield cold_table(tradeoff)
    if tradeoff.count is not None:
        yield layer_table(tradeoff.count, tradeoff.roofline, layers)
    for row in tradeoff.rows:
        if row.reason is not None:
            yield Line(f"{row.variant}: {row.reason}", label="Not measured", label_style="warning")
    yield from listing(_footnotes(tradeoff))


def sweep_blocks(sweep: Sweep) -> Iterator[Block]:
    """Yield the table of the backbones, and remarks on the figures."""
    rows: list[TableRow] = []
    for row in sweep.rows:
        if (latency := row.latency) is not None:
            parameters = Cell(_scaled(row.parameters), row.parameters)
            macs = Cell(("≥ " if row.uncounted else "") + _scaled(row.macs), row.macs)
            throughput = Cell(format_count(float(f"{latency.throughput:.3g}")), latency.throughput)
            speed = Cell("1×", 1.0) if latency.speedup is None else latency.speedup.value
            times_ms = latency.p50_ms, latency.p90_ms
            rows.append((row.name, parameters, macs, *times_ms, throughput, speed, row.efficiency))
    heads = ("backbone", "params", "MACs", "median", "p90", "inputs/s", "speed", "of peak")
    kinds = "name figure figure milliseconds milliseconds figure ratio share"
    yield table(heads, rows, sweep_title(sweep), kinds)
    yield from listing(_sweep_footnotes(sweep))


def sweep_title(sweep: Sweep) -> str:
    """Return the conditions of a sweep."""
    shape = "×".join(map(str, sweep.input_shape))
    threads = "" if sweep.peaks.threads is None else f", {counted(sweep.threads, 'thread')}"
    return f"Untrained backbones, float32, input {shape}, batch {sweep.batch}, {sweep.machine.device}{threads}"


def _scaled(number: float | None) -> str:
    """Format a large count with a prefix, e.g. 1.81 G."""
    return NOT_AVAILABLE if number is None else format_flop_rate(number).removesuffix("FLOP/s").strip()


def _sweep_footnotes(sweep: Sweep) -> Iterator[str]:
    yield from (f"{row.name}: {row.reason}" for row in sweep.rows if row.reason is not None)
    first = next((row.name for row in sweep.rows if row.latency is not None and row.latency.speedup is None), None)
    if first is not None:
        yield f"speed: speed-up over {first}."
    if sweep.noise is not None and sweep.noise.low is not None and sweep.noise.high is not None:
        yield (
            f"{first} against itself: {format_ratio(sweep.noise.low)} to {format_ratio(sweep.noise.high)}. "
            "Smaller differences are noise."
        )
    peaks = sweep.peaks
    rates = format_flop_rate(peaks.flops_per_s)
    if peaks.convolution_flops_per_s is not None:
        rates += f", for convolutions {format_flop_rate(peaks.convolution_flops_per_s)}"
    yield f"of peak: shortest possible time at {rates} ({peaks.source}), divided by the median."
    if sweep.macs_correlation is not None:
        yield f"Rank correlation of MACs and median latency: {sweep.macs_correlation:.2f}."


def tradeoff_table(tradeoff: Tradeoff, cell: results.Cell, *, intervals: bool = False) -> Table:
    """Return latency, accuracy and size of the variants for one batch size and number of threads."""
    rows: list[TableRow] = []
    for row, latency in tradeoff.measured(cell):
        share = drop = Cell(NOT_AVAILABLE)
        if row.accuracy is not None:
            share = Cell(f"{100 * row.accuracy.share:.1f} %", row.accuracy.share)
            drop = Cell(f"{_signed(row.accuracy.drop_points)} pt", row.accuracy.drop_points)
        fast, small = row.variant in cell.front, row.variant in cell.size_front
        best = "both" if fast and small else "time" if fast else "size" if small else ""
        speed = 1.0 if latency.speedup is None else latency.speedup.value
        speedup = Cell(_interval(latency.speedup) if intervals else format_ratio(speed), speed)
        rows.append((row.variant, latency.p50_ms, speedup, share, drop, row.size_bytes, best))
    heads = ("variant", "p50", "speed-up", "accuracy", "drop", "size", "best in")
    kinds = "name milliseconds ratio figure figure bytes figure"
    definitions = {"p50": "latency", "speed-up": "speed-up", "best in": "unbeaten"}
    definitions |= dict.fromkeys(("accuracy", "drop"), "accuracy-of-a-variant")
    title = f"Trade-off: {cell.conditions}"
    return table(heads, rows, title, kinds, definition="variant", definitions=definitions)


def latency_table(tradeoff: Tradeoff, cell: results.Cell) -> Table:
    """Return the latency of the variants for one batch size and number of threads."""
    on_device = tradeoff.machine.device_type != "cpu"
    rows: list[TableRow] = []
    for row in tradeoff.rows:
        if (latency := row.latency(cell.threads, cell.batch)) is not None:
            times_ms = latency.p10_ms, latency.p50_ms, latency.p90_ms, latency.p99_ms
            busy_ms = latency.device_ms if on_device else latency.cpu_ms
            speedup = Cell(_interval(latency.speedup), 1.0 if latency.speedup is None else latency.speedup.value)
            rows.append((row.variant, latency.calls, *times_ms, busy_ms, speedup, latency.throughput))
    time = "device" if on_device else "CPU"
    heads = ("variant", "calls", "p10", "p50", "p90", "p99", time, "speed-up, interval", "inputs/s")
    title = f"Latency: {cell.conditions}; the original against itself: {_interval(cell.noise)}"
    kinds = "name count" + " milliseconds" * 5 + " figure count"
    definitions = {"speed-up, interval": "speed-up"}
    return table(heads, rows, title, kinds, definition="latency", definitions=definitions, extra=("calls", "p10"))


def accuracy_table(tradeoff: Tradeoff) -> Table:
    """Return accuracy with its intervals, and the difference from the original's outputs, which needs no labels."""
    rows: list[TableRow] = []
    for row in tradeoff.rows:
        if row.reload is not None:
            error = Cell(NOT_AVAILABLE if row.output_error is None else f"{row.output_error:.1e}", row.output_error)
            difference = row.reload.max_difference
            differs = difference > row.reload.tolerance
            reloaded = Cell(f"differs by {difference:.1e}" if differs else "the same", difference, troubled=differs)
            rows.append((row.variant, *_judged(row.accuracy), error, reloaded))
    heads = ("variant", "correct", "accuracy", "drop, interval", "agreement", "output error", "after loading")
    return table(
        heads,
        rows,
        "Outputs, with 95 % intervals",
        "name figure figure figure share figure figure",
        definition="accuracy-of-a-variant",
        definitions={name: name.replace(" ", "-") for name in ("agreement", "output error", "after loading")},
        extra=("after loading",),
    )


def _judged(accuracy: Accuracy | None) -> TableRow:
    """Return the correct outputs, the interval of the accuracy and of its drop, and the agreement."""
    if accuracy is None:
        return (NOT_AVAILABLE,) * 4
    drop = NOT_AVAILABLE
    if accuracy.drop_low_points is not None and accuracy.drop_high_points is not None:
        drop = f"{_signed(accuracy.drop_low_points)} to {_signed(accuracy.drop_high_points)} pt"
    return (
        Cell(f"{accuracy.correct}/{accuracy.n}", accuracy.correct),
        Cell(f"{100 * accuracy.low:.1f}–{100 * accuracy.high:.1f} %", accuracy.share),
        Cell(drop, accuracy.drop_points),
        accuracy.agreement,
    )


def cold_table(tradeoff: Tradeoff) -> Table:
    """Return the build time of each variant, and the load time and memory of a fresh process."""
    on_device = tradeoff.machine.device_type != "cpu"
    rows: list[TableRow] = []
    for row in tradeoff.rows:
        if (cold := row.cold) is not None:
            build_ns = None if row.build_s is None else 1e9 * row.build_s
            sizes = row.parameters, row.size_bytes, row.packed_bytes
            memory = cold.peak_rss_bytes, cold.peak_device_bytes
            rows.append((row.variant, *sizes, build_ns, cold.load_ms, cold.first_call_ms, *memory))
    heads = ("variant", "parameters", "files", "packed", "build", "load", "first call", "memory", "on device")
    kinds = "name count bytes bytes duration milliseconds milliseconds bytes bytes"
    shown = None if on_device else -1
    return table(
        heads[:shown],
        (row[:shown] for row in rows),
        "Cold start, in a fresh process",
        kinds,
        definition="cold-start",
        extra=("files",),
    )


def layer_table(count: Count, roofline: Roofline | None, top: int) -> Table:
    """Return the layers with the most arithmetic."""
    layers = sorted(count.layers, key=lambda layer: -layer.flops)[:top]
    bounds = {} if roofline is None else {bound.path: (bound.bound_ms, bound.limit) for bound in roofline.layers}
    rows: list[TableRow] = []
    for layer in layers:
        share = layer.flops / count.flops if count.flops else None
        intensity = layer.arithmetic_intensity
        rows.append(
            (
                layer.path or "(the model)",
                layer.kind,
                "×".join(map(str, layer.output_shape)),
                layer.calls,
                layer.parameters,
                Cell(format_macs(layer.macs), layer.macs),
                layer.flops,
                Cell(format_share(share), share, bar=share),
                layer.bytes_moved,
                Cell(NOT_AVAILABLE if intensity is None else f"{intensity:.1f}", intensity),
                *bounds.get(layer.path, (None, "")),
                ", ".join(layer.uncounted),
            )
        )
    heads = (
        "layer", "kind", "output", "calls", "parameters", "MACs", "FLOPs", "share", "moved", "FLOPs/B",
        "least time", "bound by", "not counted",
    )  # fmt: skip
    return table(
        heads,
        rows,
        f"Layers with the most arithmetic ({len(layers)} of {len(count.layers)})",
        "code figure figure count count figure flops share bytes figure milliseconds figure figure",
        definition="macs",
        definitions={"moved": "bytes-moved", "FLOPs/B": "bytes-moved", "least time": "least-time"},
        extra=("output", "calls", "MACs", "least time", "bound by", "not counted"),
    )


def format_macs(macs: float) -> str:
    """Format a number of multiply-accumulates."""
    return format_flops(macs).replace("FLOPs", "MACs")


def _count_line(tradeoff: Tradeoff, count: Count) -> str:
    """Return the original's arithmetic and its bound."""
    intensity = count.arithmetic_intensity
    line = (
        f"{format_count(count.parameters)} parameters ({format_bytes(count.size_bytes)}), "
        f"{format_macs(count.macs)} = {format_flops(count.flops)} per input"
    )
    if intensity is not None:
        line += f", {intensity:.1f} FLOPs per byte moved"
    bound = tradeoff.roofline
    if bound is None:
        return f"{line}."
    peaks = bound.peaks
    line += (
        f". At {peak_rate(peaks)} and {format_bytes(peaks.bandwidth_bytes_per_s)}/s "
        f"({peaks.source}) it takes at least {format_milliseconds(bound.bound_ms)}"
    )
    latency = tradeoff.rows[0].latency(tradeoff.cells[0].threads, tradeoff.cells[0].batch)
    if latency is not None:
        line += f"; the original takes {format_ratio(latency.p50_ms / bound.bound_ms)} that"
    return f"{line} ({tradeoff.cells[0].conditions})."


def peak_rate(peaks: Peaks) -> str:
    """Return the rate of arithmetic, and that of convolutions if it differs."""
    rate = peaks.convolution_flops_per_s
    convolutions = "" if rate is None else f" (convolutions {format_flop_rate(rate)})"
    return format_flop_rate(peaks.flops_per_s) + convolutions


def _footnotes(tradeoff: Tradeoff) -> tuple[str, ...]:
    """Return the machine, the versions and the notes, which follow the tables."""
    machine = tradeoff.machine
    versions = ", ".join(
        f"{name} {machine.versions[name]}" for name in ("python", "torch", "lightning-perf") if name in machine.versions
    )
    where = f"{machine.cpu}, {machine.cpus} CPUs, {machine.platform}"
    lines = [f"Measured on {where}; {versions}; method {tradeoff.method_version}."]
    if tradeoff.machine.load_before is not None and tradeoff.machine.load_after is not None:
        lines.append(f"Load average {machine.load_before:.2f} before, {machine.load_after:.2f} after.")
    return (*lines, *tradeoff.notes)


def _interval(estimate: Estimate | None) -> str:
    """Format a ratio with its interval; the ratio of the baseline to itself is 1 by definition."""
    if estimate is None or estimate.value is None:
        return format_ratio(None if estimate is not None else 1.0)
    if estimate.low is None or estimate.high is None:
        return format_ratio(estimate.value)
    low, high = (format_ratio(end).removesuffix("×") for end in (estimate.low, estimate.high))
    return f"{format_ratio(estimate.value)} ({low}–{high})"


def _signed(points: float) -> str:
    """Format a drop in points; a variant that is better than the original has a minus sign."""
    text = f"{points:.2f}"
    return "0" if float(text) == 0 else text.replace("-", "−")
