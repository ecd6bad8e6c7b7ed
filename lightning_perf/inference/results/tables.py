"""Format the tables for console and Markdown as rows of text, so that both show the same."""

from __future__ import annotations

from lightning_perf.inference.counting.roofline import Peaks
from lightning_perf.inference.measurement.accuracy import Accuracy
from lightning_perf.inference.results.conclusions import measured_rows
from lightning_perf.inference.results.sweep import Sweep
from lightning_perf.inference.results.tradeoff import Cell, Row, Tradeoff
from lightning_perf.statistics.values import Estimate
from lightning_perf.tables import Table
from lightning_perf.units import (
    NOT_AVAILABLE,
    format_bytes,
    format_count,
    format_duration,
    format_flop_rate,
    format_flops,
    format_milliseconds,
    format_ratio,
    format_share,
)


def headline(tradeoff: Tradeoff) -> str:
    """Return the model, its input and the device."""
    shape = "×".join(map(str, tradeoff.input_shape))
    return f"{tradeoff.model}, inputs {shape}, float32 originals, on {tradeoff.machine.device}"


def tradeoff_table(tradeoff: Tradeoff) -> Table:
    """Return latency, accuracy and size of the variants, for the first batch size and number of threads."""
    cell = tradeoff.cells[0]
    rows = tuple(
        (
            row.variant,
            format_milliseconds(latency.p50_ms),
            _speedup(latency.speedup),
            _accuracy(row.accuracy),
            _drop(row.accuracy),
            format_bytes(row.size_bytes),
            _unbeaten(cell, row),
        )
        for row, latency in measured_rows(tradeoff.rows, cell.threads, cell.batch)
    )
    heads = ("variant", "p50", "speed-up", "accuracy", "drop", "size", "best in")
    return Table(f"Trade-off: {_where(cell)}", heads, rows)


def latency_table(tradeoff: Tradeoff, cell: Cell) -> Table:
    """Return the latency of the variants for one batch size and number of threads."""
    rows = []
    on_device = tradeoff.machine.device_type != "cpu"
    for row in tradeoff.rows:
        latency = row.latency(cell.threads, cell.batch)
        if latency is None:
            continue
        rows.append(
            (
                row.variant,
                format_milliseconds(latency.p50_ms),
                format_milliseconds(latency.p90_ms),
                format_milliseconds(latency.p99_ms),
                format_milliseconds(latency.device_ms if on_device else latency.cpu_ms),
                _interval(latency.speedup),
                format_count(latency.throughput),
            )
        )
    heads = ("variant", "p50", "p90", "p99", "device" if on_device else "CPU", "speed-up, interval", "inputs/s")
    title = f"Latency: {_where(cell)}; the original against itself: {_interval(cell.noise)}"
    return Table(title, heads, tuple(rows))


def accuracy_table(tradeoff: Tradeoff) -> Table:
    """Return accuracy with its intervals, and the difference from the original's outputs, which needs no labels."""
    rows = []
    for row in tradeoff.rows:
        if row.reload is None:
            continue
        accuracy = row.accuracy
        interval = drop_interval = agreement = right = NOT_AVAILABLE
        if accuracy is not None:
            right = f"{accuracy.correct}/{accuracy.n}"
            interval = f"{100 * accuracy.low:.1f}–{100 * accuracy.high:.1f} %"
            agreement = format_share(accuracy.agreement)
            if accuracy.drop_low_points is not None and accuracy.drop_high_points is not None:
                drop_interval = f"{_signed(accuracy.drop_low_points)} to {_signed(accuracy.drop_high_points)} pt"
        error = f"{row.output_error:.1e}" if row.output_error is not None else NOT_AVAILABLE
        rows.append((row.variant, right, interval, drop_interval, agreement, error))
    heads = ("variant", "correct", "accuracy", "drop, interval", "agreement", "output error")
    return Table("Outputs, with 95 % intervals", heads, tuple(rows))


def cold_table(tradeoff: Tradeoff) -> Table:
    """Return the build time of each variant, and the load time and memory of a fresh process."""
    on_device = tradeoff.machine.device_type != "cpu"
    rows = []
    for row in tradeoff.rows:
        if row.cold is None:
            continue
        cells = [
            row.variant,
            format_count(row.parameters),
            format_bytes(row.packed_bytes),
            format_duration(1e9 * row.build_s if row.build_s is not None else None),
            format_milliseconds(row.cold.load_ms),
            format_milliseconds(row.cold.first_call_ms),
            format_bytes(row.cold.peak_rss_bytes),
        ]
        rows.append(tuple([*cells, format_bytes(row.cold.peak_device_bytes)] if on_device else cells))
    heads = ("variant", "parameters", "packed", "build", "load", "first call", "memory")
    return Table("Cold start, in a fresh process", (*heads, "on device") if on_device else heads, tuple(rows))


def failures(tradeoff: Tradeoff) -> tuple[tuple[str, str], ...]:
    """Return the variants that failed, with the reasons."""
    return tuple((row.variant, row.reason) for row in tradeoff.rows if row.reason is not None)


def count_line(tradeoff: Tradeoff) -> str | None:
    """Return the original's arithmetic and its bound on one line; None if it was not counted."""
    count = tradeoff.count
    if count is None:
        return None
    intensity = count.arithmetic_intensity
    line = (
        f"{format_count(count.parameters)} parameters ({format_bytes(count.size_bytes)}), "
        f"{format_flops(count.macs).replace('FLOPs', 'MACs')} = {format_flops(count.flops)} per input"
    )
    if intensity is not None:
        line += f", {intensity:.1f} FLOPs per byte moved"
    bound = tradeoff.roofline
    if bound is None:
        return f"{line}."
    peaks = bound.peaks
    rates = f"{format_flop_rate(peaks.flops_per_s)}{_of_convolutions(peaks)}"
    line += (
        f". At {rates} and {format_bytes(peaks.bandwidth_bytes_per_s)}/s "
        f"({peaks.source}) it takes at least {format_milliseconds(bound.bound_ms)}"
    )
    latency = tradeoff.rows[0].latency(tradeoff.cells[0].threads, tradeoff.cells[0].batch)
    if latency is not None:
        line += f"; the original takes {format_ratio(latency.p50_ms / bound.bound_ms)} that"
    return f"{line} ({_where(tradeoff.cells[0])})."


def _of_convolutions(peaks: Peaks) -> str:
    rate = peaks.convolution_flops_per_s
    return "" if rate is None else f" (convolutions {format_flop_rate(rate)})"


def layer_table(tradeoff: Tradeoff, top: int) -> Table:
    """Return the layers with the most arithmetic."""
    count = tradeoff.count
    if count is None:
        return Table("Layers", (), ())
    layers = sorted(count.layers, key=lambda layer: -layer.flops)[:top]
    rows = tuple(
        (
            layer.path or "(the model)",
            layer.kind,
            format_count(layer.parameters),
            format_flops(layer.flops),
            format_share(layer.flops / count.flops if count.flops else None),
            format_bytes(layer.bytes_moved),
            f"{layer.arithmetic_intensity:.1f}" if layer.arithmetic_intensity is not None else NOT_AVAILABLE,
        )
        for layer in layers
    )
    heads = ("layer", "kind", "parameters", "FLOPs", "share", "moved", "FLOPs/B")
    return Table(f"Layers with the most arithmetic ({len(layers)} of {len(count.layers)})", heads, rows)


def footnotes(tradeoff: Tradeoff) -> tuple[str, ...]:
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


def sweep_title(sweep: Sweep) -> str:
    """Return the conditions of a sweep."""
    shape = "×".join(map(str, sweep.input_shape))
    threads = "" if sweep.peaks.threads is None else f", {sweep.threads} thread{'s' if sweep.threads > 1 else ''}"
    return f"Untrained backbones, float32, input {shape}, batch {sweep.batch}, {sweep.machine.device}{threads}"


def sweep_table(sweep: Sweep) -> Table:
    """Return the size, the arithmetic and the speed of the backbones."""
    rows = tuple(
        (
            row.name,
            _scaled(row.parameters),
            ("≥ " if row.uncounted else "") + _scaled(row.macs),
            format_milliseconds(latency.p50_ms),
            format_milliseconds(latency.p90_ms),
            format_count(float(f"{latency.throughput:.3g}")),
            "1×" if latency.speedup is None else _speedup(latency.speedup),
            format_share(row.efficiency),
        )
        for row in sweep.rows
        if (latency := row.latency) is not None
    )
    heads = ("backbone", "params", "MACs", "median", "p90", "inputs/s", "speed", "of peak")
    return Table(sweep_title(sweep), heads, rows)


def _scaled(count: int | None) -> str:
    """Format a large count with a prefix, e.g. 1.81 G."""
    return NOT_AVAILABLE if count is None else format_flop_rate(count).removesuffix("FLOP/s").strip()


def sweep_footnotes(sweep: Sweep) -> list[str]:
    """Return the backbones without a latency, the noise, and what the share of the peak refers to."""
    peaks = sweep.peaks
    lines = [f"{row.name}: {row.reason}" for row in sweep.rows if row.reason is not None]
    first = next((row.name for row in sweep.rows if row.latency is not None and row.latency.speedup is None), None)
    if first is not None:
        lines.append(f"speed: speed-up over {first}.")
    if sweep.noise is not None and sweep.noise.low is not None and sweep.noise.high is not None:
        lines.append(
            f"{first} against itself: {format_ratio(sweep.noise.low)} to {format_ratio(sweep.noise.high)}. "
            "Smaller differences are noise."
        )
    rates = format_flop_rate(peaks.flops_per_s)
    if peaks.convolution_flops_per_s is not None:
        rates += f", for convolutions {format_flop_rate(peaks.convolution_flops_per_s)}"
    lines.append(f"of peak: shortest possible time at {rates} ({peaks.source}), divided by the median.")
    if sweep.macs_correlation is not None:
        lines.append(f"Rank correlation of MACs and median latency: {sweep.macs_correlation:.2f}.")
    return lines


def _where(cell: Cell) -> str:
    return f"batch {cell.batch}, {cell.threads} thread{'' if cell.threads == 1 else 's'}"


def _speedup(speedup: Estimate | None) -> str:
    return format_ratio(1.0 if speedup is None else speedup.value)


def _interval(estimate: Estimate | None) -> str:
    """Format a ratio with its interval; the ratio of the baseline to itself is 1 by definition."""
    if estimate is None or estimate.value is None:
        return format_ratio(None if estimate is not None else 1.0)
    if estimate.low is None or estimate.high is None:
        return format_ratio(estimate.value)
    low, high = (format_ratio(end).removesuffix("×") for end in (estimate.low, estimate.high))
    return f"{format_ratio(estimate.value)} ({low}–{high})"


def _accuracy(accuracy: Accuracy | None) -> str:
    return NOT_AVAILABLE if accuracy is None else f"{100 * accuracy.share:.1f} %"


def _drop(accuracy: Accuracy | None) -> str:
    return NOT_AVAILABLE if accuracy is None else f"{_signed(accuracy.drop_points)} pt"


def _signed(points: float) -> str:
    """Format a drop in points; a variant that is better than the original has a minus sign."""
    text = f"{points:.2f}"
    return "0" if float(text) == 0 else text.replace("-", "−")


def _unbeaten(cell: Cell, row: Row) -> str:
    fast, small = row.variant in cell.front, row.variant in cell.size_front
    return "both" if fast and small else "time" if fast else "size" if small else ""
