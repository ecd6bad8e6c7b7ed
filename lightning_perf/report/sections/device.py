"""How the device was used: efficiency, launches, idle time, waits of the host, casts and communication."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from lightning_perf.analysis.host.launches import Launches, QueueDepth
from lightning_perf.analysis.host.waits import SyncPoint, SyncPoints
from lightning_perf.analysis.intervals import Series
from lightning_perf.analysis.kernels.efficiency import Efficiency
from lightning_perf.analysis.precision.amp_gain import AutocastTax
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.ranks.communication import CollectiveRow, Communication
from lightning_perf.analysis.ranks.distributed import LinkUse
from lightning_perf.analysis.steps.idle import Idle
from lightning_perf.findings.savings import each
from lightning_perf.report.labels import GAP_LABELS, PHASE_LABELS
from lightning_perf.run_files.fit.gpu_health import GpuHealth
from lightning_perf.show.blocks import (
    EVERY_ROW,
    WIDE,
    Bar,
    Block,
    Cell,
    Field,
    Figure,
    Figures,
    Heading,
    Line,
    Part,
    Plot,
    table,
    tabulate,
)
from lightning_perf.show.kernel_text import kernel_text
from lightning_perf.show.plots import area, time_axis
from lightning_perf.units import (
    NOT_AVAILABLE,
    counted,
    format_bandwidth,
    format_bytes,
    format_count,
    format_duration,
    format_energy,
    format_flop_rate,
    format_share,
)

LONGEST_GAPS = 3


def device_parts(rank: RankAnalysis, top: int) -> dict[str, Iterable[Block]]:
    """Return the blocks of each part that the recording supports, its tables cut to their first rows."""
    of_what = each(rank)
    parts: dict[str, Iterable[Block]] = {}
    if rank.launches is not None and rank.launches.calls:
        parts["launches"] = _launches(rank.launches, of_what)
    if rank.idle is not None and rank.idle.idle_ns:
        # Without recorded operators, the other work of the host is unknown.
        unknown = {} if rank.operators is not None else {"host_other": "not recorded (no operators)"}
        parts["idle"] = _idle(rank.idle, of_what, GAP_LABELS | unknown)
        parts["gaps"] = _gaps(rank, rank.idle, GAP_LABELS | unknown, top)
    if rank.sync_points is not None and rank.sync_points.points:
        parts["sync"] = _sync_points(rank.sync_points, of_what)
    if rank.autocast is not None:
        parts["casts"] = _casts(rank.autocast, of_what)
    if rank.communication is not None:
        parts["communication"] = _communication(rank, rank.communication, of_what, top)
    return parts


def efficiency_section(efficiency: Efficiency) -> Iterator[Block]:
    """Yield how busy and how full each device was. The page shows these figures in its tiles."""
    yield Heading("Use of the device")
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
        mfu, *facts = mfu_texts(efficiency)
        more = f", MFU {' · '.join([mfu, *facts])}" if efficiency.mfu is not None else ""
        yield Line(f"Matrix products: {bound}{format_flop_rate(efficiency.flops_per_s)}{more}")
    if efficiency.mfu is None and efficiency.mfu_missing:
        yield Line(f"No MFU: {efficiency.mfu_missing}", "quiet")


GPU_HEADS = ("clock\nunder load", "power\nunder load", "hottest")


def gpu_figures(gpu: GpuHealth) -> tuple[str, str, str]:
    """Return clock, power and heat of a GPU, below `GPU_HEADS`."""
    return (
        _of(gpu.clock_mhz, gpu.clock_limit_mhz, "MHz") + " (set)" * gpu.clock_is_set,
        _of(gpu.power_w, gpu.power_limit_w, "W"),
        NOT_AVAILABLE if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C",
    )


def gpu_health_section(gpus: Sequence[GpuHealth]) -> Iterator[Block]:
    """Yield clock, power, heat and energy of each rank's GPU over the fit, and the reasons for low clocks."""
    yield Heading("GPUs over the training", definition="gpu-health")
    rows = (
        (
            str(gpu.rank),
            gpu.load,
            *gpu_figures(gpu),
            format_energy(gpu.energy_j),
        )
        for gpu in gpus
    )
    heads = ("rank", "load", *GPU_HEADS, "energy")
    yield table(heads, rows, kinds="name share" + " figure" * 4)
    for gpu in gpus:
        for found in gpu.reasons:
            text = f"Rank {gpu.rank}: {found.reason} in {format_share(found.share)} of the samples"
            yield Line(text, "warning" if found.harmful else "plain")
        if gpu.other_processes:
            yield Line(
                f"Rank {gpu.rank}: {counted(gpu.other_processes, 'other process', 'other processes')}", "warning"
            )
        if gpu.corrected_errors:
            errors = counted(gpu.corrected_errors, "memory error")
            yield Line(f"Rank {gpu.rank}: {errors}, corrected by ECC", "quiet")
        if gpu.sample_energy_j is not None:
            yield Line(f"Rank {gpu.rank}: {format_energy(gpu.sample_energy_j)} per sample")
    energies = {gpu.uuid: gpu.energy_j for gpu in gpus}
    if len(energies) > 1 and None not in energies.values() and not any(uuid.startswith("MIG-") for uuid in energies):
        yield Line(f"Energy of all {len(energies)} GPUs: {format_energy(sum(filter(None, energies.values())))}")
    yield Line("Figures are those of the whole GPU, with all programs on it, from the second batch on.", "quiet")


def _of(value: float | None, limit: float | None, unit: str) -> str:
    number = NOT_AVAILABLE if value is None else f"{value:,.0f}"
    return f"{number} {unit}" if limit is None else f"{number} of {limit:,.0f} {unit}"


def mfu_texts(efficiency: Efficiency) -> list[str]:
    """Return the MFU, then what to know about it."""
    mfu, most, hfu, covered = efficiency.mfu, efficiency.mfu_high, efficiency.hfu, efficiency.flops_coverage
    if mfu is None or covered is None:
        return [format_share(mfu)]
    texts = [format_share(mfu)]
    if covered < 1:
        texts = [f"at least {texts[0]}", f"FLOPs known for {format_share(covered)} of product time"]
    elif most is not None and most > mfu:
        texts = [f"{texts[0]} to {format_share(most)}"]
    if most is not None and most > mfu:
        texts.append("mask or lengths of attention not recorded")
    return texts + ([f"HFU {format_share(hfu)} with repeated forward work"] if hfu is not None and hfu > mfu else [])


def _launches(found: Launches, of_what: str) -> Iterator[Block]:
    steps = max(found.steps, 1)
    delay, queue, graphs, bound = found.delay, found.queue, found.graphs, found.launch_bound
    yield Heading(f"Launches, {of_what}", definition="launch-call")
    if bound is not None:
        waits = f"the device waits {format_share(bound.share)} of the time, in gaps of at most 1 ms"
        text = f"aunch-bound: {waits}, for the host to issue work."
        yield Line(f"L{text}", "bad") if bound.bound else Line(f"Not l{text}", "good")
    ends = f"p90 {format_duration(delay.p90_ns)}, p99 {format_duration(delay.p99_ns)}" if delay else ""
    exposed = f"{format_duration(found.exposed_ns / steps)} exposed"
    short = f"of {format_count(found.kernels / steps)}, {format_duration(found.short_kernel_ns / steps)}"
    figures = [
        Figure("Launch calls", format_count(found.calls / steps), definition="launch-call"),
        Figure("Time in launch calls", format_duration(found.call_ns / steps), exposed, "launch-time"),
        Figure("Launch to start", format_duration(delay.p50_ns if delay else None), ends, "launch-delay"),
        Figure("Short kernels", format_count(found.short_kernels / steps), short, "short-kernels"),
        Figure("Outrun kernels", format_count(found.outrun_kernels / steps), definition="outrun-kernels"),
    ]
    if queue is not None:
        deepest = f"at most {format_count(queue.max)}"
        figures.insert(3, Figure("Queue depth", format_count(queue.mean), deepest, "queue-depth"))
        figures.insert(4, Figure("Queue empty", format_share(queue.empty_share), "of the time", "queue-depth"))
    if graphs is not None:
        kernels = f"{counted(graphs.kernels_per_graph, 'kernel')} each"
        figures.append(Figure("Graph launches", format_count(graphs.calls / steps), kernels, "graph-launch"))
    yield Figures(tuple(figures))
    if bound is not None and bound.waiting_ns:
        yield Heading("Time that the device waits for the host to issue work", 4)
        times = (
            ("in launch calls", bound.launch_ns, "kernel_launch"),
            ("in operators", bound.operator_ns, "host_compute"),
            ("in Python in between", bound.python_ns, "host_other"),
        )
        yield _times("Waiting for the host", times, steps, alone=True)
    if queue is not None and queue.series.time_ns:
        yield Heading("Queue depth over time", 4)
        yield _queue(queue)
    if queue is not None and len(queue.streams) > 1:
        yield table(
            ("stream", "items", "mean depth", "greatest", "empty"),
            (
                (f"device {row.device}, stream {row.stream}", row.items / steps, row.mean, row.max, row.empty_share)
                for row in queue.streams
            ),
            kinds="name count count count share",
        )


def _times(title: str, parts: Iterable[tuple[str, float, str]], steps: int, *, alone: bool = False) -> Bar:
    """Return a bar of times, which are sums over some steps."""
    shown = (
        Part(label, time_ns, format_duration(time_ns / steps), color) for label, time_ns, color in parts if time_ns
    )
    return Bar(title, tuple(shown), alone=alone)


def _queue(queue: QueueDepth) -> Plot:
    unit, size_ns = time_axis(queue.series.time_ns[-1])
    return Plot(
        f"Queue depth over the recording, on average {format_count(queue.mean)}",
        (area(*curve(queue.series, size_ns, 1), "accent", units=(unit, "queued")),),
        {
            "xaxis": {"title": f"{unit} since the start of the recording"},
            "yaxis": {"title": "queued", "rangemode": "tozero"},
        },
        height=220,
    )


def curve(series: Series, size_ns: float, size: float) -> tuple[list[float], list[float]]:
    """Return the times and the values of a series in the units of its chart."""
    return [round(time / size_ns, 6) for time in series.time_ns], [round(value / size, 6) for value in series.value]


def _idle(idle: Idle, of_what: str, labels: Mapping[str, str]) -> Iterator[Block]:
    steps = max(idle.steps, 1)
    facts = f"{format_duration(idle.idle_ns / steps)} {of_what}, {format_share(idle.share)}, "
    facts += f"in {counted(idle.gaps / steps, 'gap')}; the median gap is {format_duration(idle.median_gap_ns)}"
    yield Heading("Device idle", definition="device-idle", aside=facts)
    times = ((labels[row.name], row.total_ns, row.name) for row in idle.classes)
    yield _times("Host activity while the device was idle", times, steps)
    yield table(
        ("while the host was", "time", "share", "gaps", "remedy"),
        (
            (Cell(labels[row.name], color=row.name), row.total_ns / steps, row.share, row.gaps / steps, row.remedy)
            for row in idle.classes
            if row.total_ns
        ),
        kinds="name duration share count text",
        extra=("remedy",),
    )


def _gaps(rank: RankAnalysis, idle: Idle, labels: Mapping[str, str], top: int) -> Iterator[Block]:
    """Yield the longest gaps. Their steps are known if the recording marks them."""
    rows = []
    for gap in idle.longest if top == EVERY_ROW else idle.longest[:LONGEST_GAPS]:
        start, length = gap.start_ns, gap.length_ns
        # Three times its length is in view.
        place = f"#view=timeline&time.from={start - length}&time.to={start + 2 * length}&time.at={start + length // 2}"
        cause, where = Cell(labels[gap.cause], color=gap.cause), gap.python or gap.operator or gap.annotation or ""
        step = gap.step if rank.breakdown.marked else None
        rows.append((length, cause, where, step, Cell(format_duration(start), start, link=place), gap.after or ""))
    if rows:
        yield Heading("Longest gaps")
        heads = ("length", "while", "in", "step", "at", "ended by")
        yield table(heads, rows, kinds="duration text code count duration code", extra=("at", "ended by"))


def _sync_points(waits: SyncPoints, of_what: str) -> Iterator[Block]:
    steps = max(waits.steps, 1)
    time = f"{format_duration(waits.wait_ns / steps)} {of_what}"
    yield Heading("Waits of the host for the device", definition="sync-point", aside=time)
    yield tabulate(
        waits.points,
        (
            Field("in", "name", _waiting_call),
            Field("phase", "figure", lambda point: PHASE_LABELS[point.phase]),
            Field("calls", "count", "calls", per=steps),
            Field("wait", "duration", "wait_ns", per=steps),
            Field("device\nidle after", "duration", "drained_ns", per=steps),
            Field("saving\nat most", "duration", "regained_ns", per=steps),
        ),
    )


def _waiting_call(point: SyncPoint) -> str:
    return ", ".join(filter(None, (point.operator, "GradScaler" * point.by_scaler, point.call)))


def _casts(tax: AutocastTax, of_what: str) -> Iterator[Block]:
    """Yield the number and the time of casts, and how many of them repeat others."""
    steps = max(tax.steps, 1)
    yield Heading(f"Casts between floating-point types, {of_what}", definition="autocast-tax")
    if tax.missing or not tax.count:
        yield Line(f"Not known: {tax.missing}." if tax.missing else "No casts.", "quiet")
        return
    of = "device compute" if tax.on_device else "the step"
    yield Figures(
        (
            Figure("Casts", format_count(tax.count / steps)),
            Figure("Time", format_duration(tax.time_ns / steps), f"{format_share(tax.share)} of {of}"),
            *(
                Figure(label, format_count(count / steps), format_duration(time_ns / steps))
                for label, count, time_ns in (
                    ("Repeated casts of a weight", tax.repeated_weight_casts, tax.repeated_weight_ns),
                    ("To FP32 and back", tax.round_trips, tax.round_trip_ns),
                )
                if count
            ),
        )
    )
    yield table(
        ("from – to", "casts", "time"),
        (
            (f"{cast.source.upper()} – {cast.target.upper()}", cast.count / steps, cast.time_ns / steps)
            for cast in tax.casts
        ),
        kinds="name count duration",
    )


def _communication(rank: RankAnalysis, found: Communication, of_what: str, top: int) -> Iterator[Block]:
    steps = max(rank.breakdown.averaged_steps, 1)
    several = (rank.metadata.world_size or 1) > 1 and rank.rank is not None
    title = f"Communication of rank {rank.rank}" if several else "Communication"
    yield Heading(f"{title}, {of_what}", definition="communication-time")
    if found.collectives:
        share = "" if found.exposed_share is None else f"{format_share(found.exposed_share)} of the step"
        whole, hidden, exposed = (
            format_duration(time_ns / steps)
            for time_ns in (found.communication_ns, found.overlapped_ns, found.exposed_ns)
        )
        yield Figures(
            (
                Figure("In collectives", whole, definition="communication-time"),
                Figure("Overlapped", hidden, definition="communication-time"),
                Figure("Exposed", exposed, share, "communication"),
            )
        )
        parts = (("overlapped", found.overlapped_ns, "overlapped"), ("exposed", found.exposed_ns, "communication"))
        yield _times("Communication", parts, steps)
        if top == EVERY_ROW:
            yield from _sent(found)
    if rank.link is not None:
        yield _link(rank.link)
    if found.collectives:
        yield from _collectives(found, steps, top)
        return
    rows = ((row.name, row.calls / steps, row.total_ns / steps) for row in found.host_collectives[:top])
    yield table(("collective on the host", "calls", "time"), rows, kinds="code count duration")


def _link(use: LinkUse) -> Line:
    rate = f"Bus bandwidth {'at least ' if use.at_least else ''}{format_bandwidth(use.bus_bytes_per_s)}"
    if use.share is None:
        return Line(f"{rate}. The link's peak is unknown: {use.missing} (--link gives it).", "quiet")
    return Line(f"{rate}, {format_share(use.share)} of {use.link} ({format_bandwidth(use.link_bytes_per_s)}).")


def _sent(found: Communication) -> Iterator[Line]:
    """Yield the data that each collective sends, with all its sizes together; nothing if no size is recorded."""
    sums: dict[str, tuple[int, int]] = {}
    for row in found.collectives:
        if row.bytes is not None:
            size, calls = sums.get(row.name, (0, 0))
            sums[row.name] = size + row.bytes * row.calls, calls + row.calls
    texts = [
        f"{name} {format_bytes(size)} ({size:,} bytes) in {counted(calls, 'call')}"
        for name, (size, calls) in sums.items()
    ]
    if texts:
        yield Line(f"Sent in all averaged steps: {', '.join(texts)}.", "quiet")


def _collectives(communication: Communication, steps: int, top: int) -> Iterator[Block]:
    rates = ("algorithm_bytes_per_s", "bus_bytes_per_s", "best_bus_bytes_per_s")
    yield tabulate(
        communication.collectives[:top],
        (
            Field("collective", "code", lambda row: f"{kernel_text(row.name)} {row.dtype or ''}".strip()),
            Field("group", "text", _group, extra=WIDE),
            Field("size", "bytes", "bytes"),
            Field("calls", "count", "calls", per=steps),
            Field("sent", "bytes", lambda row: None if row.bytes is None else row.bytes * row.calls, "", WIDE, steps),
            Field("time", "duration", "total_ns", extra=WIDE, per=steps),
            Field("mean", "duration", "mean_ns"),
            Field("minimum", "duration", "min_ns"),
            Field("maximum", "duration", "max_ns", extra=WIDE),
            Field("bandwidth", "bandwidth", rates[0], "algorithm-bandwidth", WIDE),
            Field("bus bandwidth", "bandwidth", rates[1], "bus-bandwidth"),
            Field("of the shortest", "bandwidth", rates[2], "bus-bandwidth", WIDE),
        ),
    )


def _group(row: CollectiveRow) -> str:
    return ", ".join([row.group or "", *([counted(row.ranks, "rank")] if row.group and row.ranks else [])])
