"""How the device was used: efficiency, launches, idle time, casts, memory and communication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lightning_perf.analysis.host.launches import Launches
from lightning_perf.analysis.host.sync_points import SyncPoints
from lightning_perf.analysis.kernels.efficiency import Efficiency
from lightning_perf.analysis.model.memory import DeviceMemory
from lightning_perf.analysis.precision.autocast_tax import AutocastTax
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.ranks.communication import Communication
from lightning_perf.analysis.steps.idle import Idle
from lightning_perf.findings.savings import each
from lightning_perf.report.labels import GAP_LABELS, MEMORY_LABELS, PHASE_LABELS
from lightning_perf.report.sentences import batch_sentences
from lightning_perf.show.blocks import Block, Cell, Heading, Line, Table, TableRow, table
from lightning_perf.show.terminal_text import kernel_text
from lightning_perf.units import format_bytes, format_count, format_duration, format_flop_rate, format_share

LONGEST_GAPS = 3


def device_sections(analysis: RankAnalysis, top: int) -> Iterator[Block]:
    """Yield the sections that the recording supports. Sections of the device need device work."""
    of_what = each(analysis)
    marked = analysis.breakdown.marked
    if analysis.efficiency is not None and analysis.efficiency.devices:
        yield Heading("Use of the device")
        yield from _efficiency(analysis.efficiency)
    if analysis.launches is not None and analysis.launches.calls:
        yield Heading(f"Launches, {of_what}")
        yield from map(Line, _launches(analysis.launches))
    if analysis.idle is not None and analysis.idle.idle_ns:
        idle = analysis.idle
        time = format_duration(idle.idle_ns / max(idle.steps, 1))
        yield Heading(f"Device idle: {time} {of_what}, {format_share(idle.share)}")
        yield from _idle(idle, idle_labels(operators=analysis.operators is not None), marked=marked)
    if analysis.sync_points is not None and analysis.sync_points.points:
        waits = analysis.sync_points
        time = format_duration(waits.wait_ns / max(waits.steps, 1))
        yield Heading(f"Waits of the host for the device: {time} {of_what}")
        yield sync_table(waits)
    if analysis.autocast is not None and analysis.autocast.count:
        yield Heading(f"Casts between floating types, {of_what}")
        yield from map(Line, cast_sentences(analysis.autocast))
    if analysis.communication is not None:
        yield Heading(f"Communication, {of_what}")
        yield from _communication(analysis.communication, max(analysis.breakdown.averaged_steps, 1), top)
    if analysis.memory is not None:
        yield Heading("Memory")
        for device in analysis.memory.devices:
            yield from _device_memory(device, marked, top)


def _efficiency(efficiency: Efficiency) -> Iterator[Block]:
    for device in efficiency.devices:
        facts = [f"busy {format_share(device.busy)}"]
        if device.sm_efficiency is not None:
            facts.append(f"SM efficiency {format_share(device.sm_efficiency)}")
        if device.occupancy is not None:
            facts.append(f"occupancy {format_share(device.occupancy)}")
        yield Line(f"Device {device.ordinal}{f' ({device.name})' if device.name else ''}: {' · '.join(facts)}")
    if efficiency.flops_per_s is not None:
        covered = efficiency.flops_coverage
        bound = "at least " if covered is not None and covered < 1 else ""
        mfu = f", MFU {format_share(efficiency.mfu)}" if efficiency.mfu is not None else ""
        yield Line(f"Matrix products: {bound}{format_flop_rate(efficiency.flops_per_s)}{mfu}")
    if efficiency.mfu is None and efficiency.mfu_missing:
        yield Line(f"No MFU: {efficiency.mfu_missing}", "quiet")


def _launches(launches: Launches) -> Iterator[str]:
    steps = max(launches.steps, 1)
    short = launches.short_kernels / launches.kernels if launches.kernels else None
    yield (
        f"{format_count(launches.calls / steps)} launch calls take {format_duration(launches.call_ns / steps)}, "
        f"{format_duration(launches.exposed_ns / steps)} of it exposed"
    )
    yield f"{format_count(launches.kernels / steps)} kernels, {format_share(short)} of them shorter than 10 µs"
    if launches.delay is not None:
        delay = launches.delay
        yield f"From launch to start: {format_duration(delay.p50_ns)} (p50), {format_duration(delay.p99_ns)} (p99)"
    if launches.queue is not None:
        queue = launches.queue
        yield (
            f"Queue: {format_count(queue.mean)} launches deep on average, {queue.max} at most, "
            f"empty {format_share(queue.empty_share)} of the time"
        )
    if launches.graphs is not None:
        graphs = launches.graphs
        kernels = format_count(graphs.kernels / steps)
        yield f"{format_count(graphs.calls / steps)} graph launches start {kernels} kernels"
    if launches.launch_bound is not None:
        bound = launches.launch_bound
        yield (
            f"The device waits for launches {format_share(bound.share)} of the time: "
            f"{'launch-bound' if bound.bound else 'not launch-bound'}"
        )


def idle_table(idle: Idle, labels: Mapping[str, str]) -> Table:
    """Return the idle time by the host's activity, with the name of each activity."""
    steps = max(idle.steps, 1)
    return table(
        ("while the host was", "time", "share", "gaps", "remedy"),
        (
            (
                Cell(labels[row.name], color=row.name),
                row.total_ns / steps,
                row.share,
                row.gaps / steps,
                row.remedy,
            )
            for row in idle.classes
            if row.total_ns
        ),
        kinds="name duration share count text",
        extra=("remedy",),
    )


def idle_labels(*, operators: bool) -> Mapping[str, str]:
    """Return the names of the host's activities. Without recorded operators, its other work is unknown."""
    return GAP_LABELS if operators else GAP_LABELS | {"host_other": "not recorded (no operators)"}


def _idle(idle: Idle, labels: Mapping[str, str], *, marked: bool) -> Iterator[Block]:
    yield idle_table(idle, labels)
    for gap in idle.longest[:LONGEST_GAPS]:
        place = gap.python or gap.operator or gap.annotation
        text = f"{format_duration(gap.length_ns)}{f' in step {gap.step}' if marked else ''}, {labels[gap.cause]}"
        yield Line(f"Long gap: {text}{f', in {place}' if place else ''}", "quiet")


def sync_table(waits: SyncPoints) -> Table:
    """Return the places where the host waits for the device."""
    steps = max(waits.steps, 1)
    return table(
        ("in", "phase", "calls", "wait", "device\nidle after", "saving\nat most"),
        (
            (
                ", ".join(filter(None, (point.operator, "GradScaler" * point.by_scaler, point.call))),
                PHASE_LABELS[point.phase],
                point.calls / steps,
                *(t / steps for t in (point.wait_ns, point.drained_ns, point.regained_ns)),
            )
            for point in waits.points
        ),
        kinds="name figure count duration duration duration",
    )


def cast_sentences(autocast: AutocastTax) -> Iterator[str]:
    """Yield the number and the time of casts, and how many of them repeat others."""
    steps = max(autocast.steps, 1)
    of = "device compute" if autocast.on_device else "the step"
    time = format_duration(autocast.time_ns / steps)
    yield f"{format_count(autocast.count / steps)} casts take {time}, {format_share(autocast.share)} of {of}"
    if autocast.repeated_weight_casts:
        time = format_duration(autocast.repeated_weight_ns / steps)
        yield f"{format_count(autocast.repeated_weight_casts / steps)} cast a weight again, {time}"
    if autocast.round_trips:
        time = format_duration(autocast.round_trip_ns / steps)
        yield f"{format_count(autocast.round_trips / steps)} go to FP32 and back, {time}"


def _communication(communication: Communication, steps: int, top: int) -> Iterator[Block]:
    if communication.steps:
        yield Line(
            f"{format_duration(communication.communication_ns / steps)} in collectives: "
            f"{format_duration(communication.overlapped_ns / steps)} overlapped by compute, "
            f"{format_duration(communication.exposed_ns / steps)} exposed"
        )
    if communication.collectives:
        yield collective_table(communication, steps, top)
        return
    for host in communication.host_collectives[:top]:
        calls = host.calls / steps
        counted = f"{format_count(calls)} {'call' if calls == 1 else 'calls'}"
        yield Line(f"{host.name}: {counted}, {format_duration(host.total_ns / steps)} on the host")


def collective_table(communication: Communication, steps: int, top: int) -> Table:
    """Return the collectives on the device by cost."""
    rows = (
        (
            f"{kernel_text(row.name)}{f' {row.dtype}' if row.dtype else ''}",
            "" if row.group is None else f"{row.group}{f', {row.ranks} ranks' if row.ranks else ''}",
            row.bytes,
            row.calls / steps,
            None if row.bytes is None else row.bytes * row.calls / steps,
            row.total_ns / steps,
            row.mean_ns,
            row.min_ns,
            row.max_ns,
            row.algorithm_bytes_per_s,
            row.bus_bytes_per_s,
            row.best_bus_bytes_per_s,
        )
        for row in communication.collectives[:top]
    )
    heads = ("collective", "group", "size", "calls", "sent", "time", "mean", "minimum", "maximum")
    rates = ("bandwidth", "bus bandwidth", "of the shortest")
    return table(
        (*heads, *rates),
        rows,
        kinds="code text bytes count bytes" + " duration" * 4 + " bandwidth" * 3,
        definitions={rates[0]: "algorithm-bandwidth", rates[1]: "bus-bandwidth", rates[2]: "bus-bandwidth"},
        extra=("group", "sent", "time", "maximum", rates[0], rates[2]),
    )


def _device_memory(memory: DeviceMemory, marked: bool, top: int) -> Iterator[Block]:
    name = "Host" if memory.device is None else f"Device {memory.device}"
    facts = [f"peak {'' if memory.absolute else 'at least '}{format_bytes(memory.peak_allocated_bytes)} in tensors"]
    if memory.peak_step is not None and marked:
        facts[0] += f" (step {memory.peak_step})"
    if memory.peak_reserved_bytes is not None:
        facts.append(f"{format_bytes(memory.peak_reserved_bytes)} reserved")
    if memory.total_bytes is not None:
        facts.append(f"of {format_bytes(memory.total_bytes)}")
    yield Line(f"{name}: {' · '.join(facts)}")
    if not memory.parts:
        return
    whole = sum(part.bytes for part in memory.parts)
    yield table(
        ("at the peak", "size", "share"),
        ((part.category, part.bytes, part.bytes / whole) for part in memory.parts),
        kinds="name bytes share",
    )
    rows: list[TableRow] = []
    for row in (memory.alive or ())[:top]:
        place = " in ".join(filter(None, (row.operator and kernel_text(row.operator), row.module)))
        rows.append(
            (
                place or ("(no operator)" if row.phase is not None else "(before the recording)"),
                MEMORY_LABELS[row.category],
                PHASE_LABELS[row.phase] if row.phase is not None else "",
                row.blocks,
                row.bytes,
            )
        )
    yield table(("held by", "for", "phase", "blocks", "size"), rows, kinds="name figure figure count bytes")
    yield from map(Line, batch_sentences(memory))
