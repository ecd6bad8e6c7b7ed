"""How the device was used: efficiency, launches, idle time, casts, memory and communication."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from lightning_perf.analysis.host.launches import Launches
from lightning_perf.analysis.host.sync_points import SyncPoints
from lightning_perf.analysis.kernels.efficiency import Efficiency
from lightning_perf.analysis.model.memory import DeviceMemory, Memory
from lightning_perf.analysis.precision.autocast_tax import AutocastTax
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.ranks.communication import Communication
from lightning_perf.analysis.steps.idle import Idle
from lightning_perf.findings.savings import each
from lightning_perf.report.console.layout import label, table
from lightning_perf.report.labels import GAP_LABELS, MEMORY_LABELS, PHASE_LABELS
from lightning_perf.report.sentences import batch_sentences
from lightning_perf.terminal_text import kernel_text, plain
from lightning_perf.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_duration,
    format_flop_rate,
    format_share,
)

__all__ = ["device_sections"]

LONGEST_GAPS = 3


def device_sections(analysis: RankAnalysis, top: int) -> Iterator[tuple[str, RenderableType]]:
    """Yield title and body of the sections that the recording supports. Sections of the device need device work.

    Args:
        analysis: The rank's analyses.
        top: Rows of the longer tables.
    """
    of_what = each(analysis)
    if analysis.efficiency is not None and analysis.efficiency.devices:
        yield "Use of the device", _efficiency(analysis.efficiency)
    if analysis.launches is not None and analysis.launches.calls:
        yield f"Launches, {of_what}", _launches(analysis.launches)
    if analysis.idle is not None and analysis.idle.idle_ns:
        idle = analysis.idle
        title = (
            f"Device idle: {format_duration(idle.idle_ns / max(idle.steps, 1))} {of_what}, {format_share(idle.share)}"
        )
        yield title, _idle(idle, marked=analysis.breakdown.marked)
    if analysis.sync_points is not None and analysis.sync_points.points:
        waits = analysis.sync_points
        title = f"Waits of the host for the device: {format_duration(waits.wait_ns / max(waits.steps, 1))} {of_what}"
        yield title, _waits(waits)
    if analysis.autocast is not None and analysis.autocast.count:
        yield f"Casts between floating types, {of_what}", _autocast(analysis.autocast)
    if analysis.communication is not None:
        steps = analysis.breakdown.averaged_steps
        yield f"Communication, {of_what}", _communication(analysis.communication, max(steps, 1), top)
    if analysis.memory is not None:
        yield "Memory", _memory(analysis.memory, marked=analysis.breakdown.marked, top=top)


def _efficiency(efficiency: Efficiency) -> RenderableType:
    lines = []
    for device in efficiency.devices:
        facts = [f"busy {format_share(device.busy)}"]
        if device.sm_efficiency is not None:
            facts.append(f"SM efficiency {format_share(device.sm_efficiency)}")
        if device.occupancy is not None:
            facts.append(f"occupancy {format_share(device.occupancy)}")
        lines.append(plain(f"Device {device.ordinal}{f' ({device.name})' if device.name else ''}: {' · '.join(facts)}"))
    if efficiency.flops_per_s is not None:
        covered = efficiency.flops_coverage
        bound = "at least " if covered is not None and covered < 1 else ""
        text = f"Matrix products: {bound}{format_flop_rate(efficiency.flops_per_s)}"
        text += f", MFU {format_share(efficiency.mfu)}" if efficiency.mfu is not None else ""
        lines.append(Text(text))
    if efficiency.mfu is None and efficiency.mfu_missing:
        lines.append(plain(f"No MFU: {efficiency.mfu_missing}", "dim"))
    return Group(*lines)


def _launches(launches: Launches) -> RenderableType:
    steps = max(launches.steps, 1)
    short = launches.short_kernels / launches.kernels if launches.kernels else None
    lines = [
        (
            f"{format_count(launches.calls / steps)} launch calls take {format_duration(launches.call_ns / steps)}, "
            f"{format_duration(launches.exposed_ns / steps)} of it exposed"
        ),
        f"{format_count(launches.kernels / steps)} kernels, {format_share(short)} of them shorter than 10 µs",
    ]
    if launches.delay is not None:
        delay = launches.delay
        lines.append(
            f"From launch to start: {format_duration(delay.p50_ns)} (p50), {format_duration(delay.p99_ns)} (p99)"
        )
    if launches.queue is not None:
        queue = launches.queue
        lines.append(
            f"Queue: {format_count(queue.mean)} launches deep on average, {queue.max} at most, "
            f"empty {format_share(queue.empty_share)} of the time"
        )
    if launches.graphs is not None:
        graphs = launches.graphs
        lines.append(
            f"{format_count(graphs.calls / steps)} graph launches start {format_count(graphs.kernels / steps)} kernels"
        )
    if launches.launch_bound is not None:
        bound = launches.launch_bound
        lines.append(
            f"The device waits for launches {format_share(bound.share)} of the time: "
            f"{'launch-bound' if bound.bound else 'not launch-bound'}"
        )
    return Group(*map(Text, lines))


def _idle(idle: Idle, *, marked: bool) -> RenderableType:
    steps = max(idle.steps, 1)
    grid = table("while the host was", "time", "share", "gaps")
    for row in idle.classes:
        if row.total_ns:
            grid.add_row(
                GAP_LABELS[row.name],
                format_duration(row.total_ns / steps),
                format_share(row.share),
                format_count(row.gaps / steps),
            )
    lines = []
    for gap in idle.longest[:LONGEST_GAPS]:
        place = gap.python or gap.operator or gap.annotation
        text = f"{format_duration(gap.length_ns)}{f' in step {gap.step}' if marked else ''}, {GAP_LABELS[gap.cause]}"
        lines.append(plain(f"Long gap: {text}{f', in {place}' if place else ''}", "dim"))
    return Group(grid, *lines)


def _waits(waits: SyncPoints) -> RenderableType:
    steps = max(waits.steps, 1)
    grid = table("in", "phase", "calls", "wait", "device\nidle after", "saving\nat most")
    for point in waits.points:
        place = point.call if point.operator is None else f"{point.operator}, {point.call}"
        times = (point.wait_ns, point.drained_ns, point.regained_ns)
        grid.add_row(
            label(place),
            PHASE_LABELS[point.phase],
            format_count(point.calls / steps),
            *(format_duration(t / steps) for t in times),
        )
    return grid


def _autocast(autocast: AutocastTax) -> RenderableType:
    steps = max(autocast.steps, 1)
    of = "device compute" if autocast.on_device else "the step"
    lines = [
        (
            f"{format_count(autocast.count / steps)} casts take {format_duration(autocast.time_ns / steps)}, "
            f"{format_share(autocast.share)} of {of}"
        )
    ]
    if autocast.repeated_weight_casts:
        lines.append(
            f"{format_count(autocast.repeated_weight_casts / steps)} cast a weight again, "
            f"{format_duration(autocast.repeated_weight_ns / steps)}"
        )
    if autocast.round_trips:
        lines.append(
            f"{format_count(autocast.round_trips / steps)} go to FP32 and back, "
            f"{format_duration(autocast.round_trip_ns / steps)}"
        )
    return Group(*map(Text, lines))


def _communication(communication: Communication, steps: int, top: int) -> RenderableType:
    lines = []
    if communication.steps:
        lines.append(
            Text(
                f"{format_duration(communication.communication_ns / steps)} in collectives: "
                f"{format_duration(communication.overlapped_ns / steps)} overlapped by compute, "
                f"{format_duration(communication.exposed_ns / steps)} exposed"
            )
        )
    if communication.collectives:
        grid = table("collective", "size", "calls", "mean", "minimum", "bus bandwidth")
        for row in communication.collectives[:top]:
            grid.add_row(
                label(f"{kernel_text(row.name)}{f' {row.dtype}' if row.dtype else ''}"),
                format_bytes(row.bytes),
                format_count(row.calls / steps),
                format_duration(row.mean_ns),
                format_duration(row.min_ns),
                format_bandwidth(row.bus_bytes_per_s),
            )
        return Group(*lines, grid)
    for host in communication.host_collectives[:top]:
        calls = host.calls / steps
        counted = f"{format_count(calls)} {'call' if calls == 1 else 'calls'}"
        lines.append(plain(f"{host.name}: {counted}, {format_duration(host.total_ns / steps)} on the host"))
    return Group(*lines)


def _memory(memory: Memory, *, marked: bool, top: int) -> RenderableType:
    return Group(*(part for device in memory.devices for part in _device_memory(device, marked, top)))


def _device_memory(memory: DeviceMemory, marked: bool, top: int) -> Iterator[RenderableType]:
    name = "Host" if memory.device is None else f"Device {memory.device}"
    facts = [f"peak {'' if memory.absolute else 'at least '}{format_bytes(memory.peak_allocated_bytes)} in tensors"]
    if memory.peak_step is not None and marked:
        facts[0] += f" (step {memory.peak_step})"
    if memory.peak_reserved_bytes is not None:
        facts.append(f"{format_bytes(memory.peak_reserved_bytes)} reserved")
    if memory.total_bytes is not None:
        facts.append(f"of {format_bytes(memory.total_bytes)}")
    yield Text(f"{name}: {' · '.join(facts)}")
    if not memory.parts:
        return
    whole = sum(part.bytes for part in memory.parts)
    grid = table("at the peak", "size", "share")
    for part in memory.parts:
        grid.add_row(label(part.category), format_bytes(part.bytes), format_share(part.bytes / whole))
    yield grid
    holders = table("held by", "for", "phase", "blocks", "size")
    for row in (memory.alive or ())[:top]:
        place = " in ".join(filter(None, (row.operator and kernel_text(row.operator), row.module)))
        holders.add_row(
            label(place or ("(no operator)" if row.phase is not None else "(before the recording)")),
            MEMORY_LABELS[row.category],
            PHASE_LABELS[row.phase] if row.phase is not None else "",
            format_count(row.blocks),
            format_bytes(row.bytes),
        )
    yield holders
    for sentence in batch_sentences(memory):
        yield Text(sentence)
