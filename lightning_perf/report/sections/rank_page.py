"""The parts of one rank on a report's page that the console shows in fewer words, except those on the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from lightning_perf.analysis.host.loading import Loading
from lightning_perf.analysis.kernels.arithmetic import Arithmetic
from lightning_perf.analysis.model.optimizers import OptimizerSteps
from lightning_perf.analysis.precision.amp_gain import AmpGain
from lightning_perf.analysis.precision.autocast_tax import AutocastTax
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.steps.breakdown import Breakdown, CategoryTime
from lightning_perf.analysis.steps.phases import PhaseTime
from lightning_perf.findings.savings import each
from lightning_perf.report.labels import CATEGORY_LABELS, PHASE_LABELS, matrix_units
from lightning_perf.report.sections.device import cast_sentences, sync_table
from lightning_perf.report.sections.device_page import device_parts
from lightning_perf.report.sections.language_model import language_model_sections
from lightning_perf.report.sections.rank import (
    arithmetic_name,
    arithmetic_table,
    breakdown_table,
    device_regions,
    outlier_text,
    unused_sentences,
)
from lightning_perf.show.blocks import (
    EVERY_ROW,
    Bar,
    Block,
    Cell,
    Heading,
    Line,
    Part,
    Plot,
    Span,
    TableRow,
    note,
    table,
)
from lightning_perf.show.plots import bars, of_total, time_axis
from lightning_perf.units import format_bytes, format_count, format_duration, format_share

MADE_BY = {"in_process": "the training process itself (num_workers=0)", "workers": "worker processes"}

MOST_HEIGHT = 400
"""Maximum height of the chart of steps in pixels; less if the table next to it is short."""

OVERLAPPING = 1.01
"""From this ratio of the sum of kernels' times to the time in which one runs, the page says that they overlap."""

PARTS = {
    "products": "products and convolutions without Tensor Cores",
    "products on Tensor Cores": "products and convolutions in TF32",
    "following": "kernels that read their results",
    "fixed": "unchanged kernels",
    "in 16 bits": "kernels in 16 bits or fewer already",
}


def rank_parts(rank: RankAnalysis) -> dict[str, Iterable[Block]]:
    """Return the blocks of each part of one rank."""
    of_what = each(rank)
    parts: dict[str, Iterable[Block]] = {
        "steps": _steps(rank.breakdown),
        "breakdown": _breakdown(rank.breakdown),
        "phases": _phases(rank),
        "arithmetic": [] if rank.arithmetic is None else _arithmetic(rank, rank.arithmetic, of_what),
        "language_model": language_model_sections(rank, EVERY_ROW),
        "regions": device_regions(rank, EVERY_ROW),
    }
    if rank.sync_points is not None and rank.sync_points.points:
        heading = Heading(f"Waits of the host for the device, {of_what}", definition="sync-point")
        parts["sync"] = [heading, sync_table(rank.sync_points)]
    if rank.amp_gain is not None:
        parts["gain"] = _gain(rank.amp_gain, of_what)
    if rank.autocast is not None:
        parts["casts"] = _casts(rank.autocast, of_what)
    if rank.loading is not None:
        parts["loading"] = _loading(rank.loading, of_what)
    if rank.optimizer is not None:
        parts["optimizer"] = _optimizer(rank.optimizer, of_what)
    return parts | device_parts(rank)


def _steps(breakdown: Breakdown) -> Iterator[Block]:
    """Yield the time of each step by category."""
    if len(breakdown.steps) < 2:
        return
    names = [f"{step.number}{'' if step.complete else ' (cut off)'}" for step in breakdown.steps]
    unit, size_ns = time_axis(max(step.wall_ns for step in breakdown.steps))
    traces = []
    for row in breakdown.categories:
        if row.parent is not None or not any(row.per_step_ns or ()):
            continue
        texts = [
            f"{CATEGORY_LABELS[row.name]}: {of_total(time_ns, step.wall_ns)}\nstep {name}"
            for time_ns, step, name in zip(row.per_step_ns or (), breakdown.steps, names, strict=True)
        ]
        traces.append(bars(names, [time_ns / size_ns for time_ns in row.per_step_ns or ()], texts, row.name))
    yield Heading("Time of each step", definition="step")
    yield Plot(
        "Step time by category, with one bar per step. The table has the means.",
        tuple(traces),
        {"barmode": "stack", "xaxis": {"title": "step", "type": "category"}, "yaxis": {"title": unit}},
        height=min(MOST_HEIGHT, 160 + 32 * sum(bool(row.mean_ns) for row in breakdown.categories)),
    )
    for outlier in breakdown.outliers:
        step = next((step for step in breakdown.steps if step.number == outlier.number), None)
        shown = () if step is None else (" ", _on_timeline(step.start_ns, step.start_ns + step.wall_ns))
        yield Line((outlier_text(outlier), *shown), "warning")


def _on_timeline(start_ns: int, end_ns: int) -> Span:
    return Span("Show it on the timeline", link=f"#view=timeline&time.from={start_ns}&time.to={end_ns}")


def _breakdown(times: Breakdown) -> Iterator[Block]:
    several = len(times.steps) > 1
    title = "Time of the recording" if not times.marked else "Breakdown" if several else "Time of the step"
    averaged = f"mean of {times.averaged_steps} steps" if times.averaged_steps > 1 else "one step"
    yield Heading(title, definition="step-time-breakdown", aside=averaged if times.marked else "the whole recording")
    if not several:
        rows = [row for row in times.categories if row.mean_ns and row.parent is None]
        yield Bar("Step time by category", tuple(_time(row, CATEGORY_LABELS) for row in rows), legend=False)
    yield breakdown_table(times)


def _phases(rank: RankAnalysis) -> Iterator[Block]:
    """Yield the mean step time by phase, and by phase and category."""
    crossed, wall_ns = rank.phases, rank.breakdown.wall.mean_ns or 1.0
    shown = [phase for phase in crossed.phases if phase.mean_ns]
    used = [
        (place, name)
        for place, name in enumerate(crossed.categories)
        if any(phase.category_mean_ns[place] for phase in crossed.phases)
    ]
    yield Heading("Phases", definition="phase-category", aside=each(rank))
    yield Bar("Time by phase", tuple(_time(phase, PHASE_LABELS) for phase in shown))
    rows: list[TableRow] = []
    for phase in shown:
        times = (phase.category_mean_ns[place] for place, _ in used)
        cells = (Cell(format_duration(time or None), time, bar=(time or 0.0) / wall_ns) for time in times)
        rows.append((PHASE_LABELS[phase.name], phase.mean_ns, *cells))
    heads = ("phase", "time", *(CATEGORY_LABELS[name] for _, name in used))
    yield table(heads, rows, kinds="name duration" + " duration" * len(used))


def _time(row: CategoryTime | PhaseTime, labels: Mapping[str, str]) -> Part:
    share = "" if row.share is None else f" {format_share(row.share)}"
    return Part(labels[row.name], row.mean_ns or 0.0, f"{format_duration(row.mean_ns)}{share}", row.name)


def _arithmetic(rank: RankAnalysis, found: Arithmetic, of_what: str) -> Iterator[Block]:
    """Yield the compute of the device by number format."""
    if not found.compute_ns:
        return
    steps = max(found.steps, 1)
    busy_ns, sum_ns = rank.breakdown.category("device_compute").mean_ns or 0.0, found.compute_ns / steps
    yield Heading("Arithmetic of device compute", definition="arithmetic", aside=of_what)
    if busy_ns > 0 and sum_ns > OVERLAPPING * busy_ns:
        added, busy = format_duration(sum_ns), format_duration(busy_ns)
        yield note(f"Kernels overlap: their times add up to {added}, but the device computes for {busy} {of_what}.")
    parts = (
        Part(arithmetic_name(row.name), row.time_ns, format_duration(row.time_ns / steps), row.name)
        for row in found.rows
        if row.time_ns
    )
    yield Bar("Device compute by arithmetic", tuple(parts))
    yield arithmetic_table(found)
    cores = matrix_units(rank.metadata)
    if found.tensor_core_share is not None:
        unknown_ns = found.tensor_core_unknown_ns / steps
        unknown = f"; unknown: {format_duration(unknown_ns)}, {format_share(unknown_ns / sum_ns)}" if unknown_ns else ""
        yield Line(f"On {cores}: {format_share(found.tensor_core_share)} of compute time{unknown}.")
    for sentence, unused in zip(unused_sentences(found, of_what, cores), found.eligible_unused, strict=True):
        yield Line(f"{sentence} ({', '.join(unused.operators)}).", "warning")


def _gain(gain: AmpGain, of_what: str) -> Iterator[Block]:
    """Yield the saving that mixed precision would bring, and the parts of the compute time that it comes from."""
    steps = max(gain.steps, 1)
    yield Heading("Predicted gain of mixed precision", definition="gain-of-mixed-precision")
    known = f"By the peak rates of {gain.device}" if gain.device else "By general factors: peak rates are not known"
    yield Line(known, "quiet")
    least, most, step = map(format_duration, (gain.least_saving_ns, gain.most_saving_ns, gain.step_ns))
    saved = f"{least} to {most}" if gain.least_saving_ns > 0 else f"Up to {most}"
    casts = f"casts of the weights cost {format_duration(gain.casts_ns)}"
    none = f"No saving of {step} {of_what}."
    yield Line(f"{saved} of {step} {of_what}; {casts}." if gain.most_saving_ns > 0 else none)
    yield table(
        ("part", "kernels", "now", "mixed, at best", "mixed, at worst"),
        (
            (
                PARTS.get(part.name, part.name),
                part.kernels / steps,
                *(time_ns / steps for time_ns in (part.time_ns, part.fastest_ns, part.slowest_ns)),
            )
            for part in gain.parts
        ),
        kinds="name count duration duration duration",
    )


def _casts(tax: AutocastTax, of_what: str) -> Iterator[Block]:
    steps = max(tax.steps, 1)
    yield Heading(f"Casts between floating-point types, {of_what}", definition="autocast-tax")
    if tax.missing or not tax.count:
        yield Line(f"Not known: {tax.missing}." if tax.missing else "No casts.", "quiet")
        return
    yield from map(Line, cast_sentences(tax))
    rows = (
        (f"{cast.source.upper()} – {cast.target.upper()}", cast.count / steps, cast.time_ns / steps)
        for cast in tax.casts
    )
    yield table(("from – to", "casts", "time"), rows, kinds="name count duration")


def _loading(loading: Loading, of_what: str) -> Iterator[Block]:
    """Yield how batches are fetched and moved."""
    steps = max(loading.steps, 1)
    yield Heading(f"Batch loading, {of_what}", definition="batch-loading")
    yield Line(MADE_BY.get(str(loading.loader), "not in the recording"), label="Batches made by")
    yield Line(format_count(loading.fetches / steps), label="Fetches")
    yield Line(format_duration(loading.fetch_ns / steps), label="Time in fetches")
    yield Line(format_duration(loading.operator_ns / steps), label="of it in operators")
    if loading.pageable_copies:
        size, time = format_bytes(loading.pageable_bytes / steps), format_duration(loading.pageable_ns / steps)
        copies = format_count(loading.pageable_copies / steps)
        yield Line(f"{copies}, {size} in {time}", label="Copies from pageable memory")


def _optimizer(found: OptimizerSteps, of_what: str) -> Iterator[Block]:
    steps = max(found.steps, 1)
    kind = f" ({found.implementation})" if found.implementation else ""
    yield Heading(f"Optimizer, {of_what}", definition="optimizer-step")
    yield Line(f"{found.name}{kind}", label="Optimizer")
    yield Line(format_count(found.operators / steps), label="Operators")
    yield Line(format_count(found.launches / steps), label="Launches")
    yield Line(format_duration(found.host_ns / steps), label="On the host")
    if found.launches:
        yield Line(format_duration(found.device_ns / steps), label="On the device")
