"""One rank: its parts on the console and on the page, with step time, phases, arithmetic, loading and optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from lightning_perf.analysis.host.loading import Loading
from lightning_perf.analysis.kernels.arithmetic import REASONS, Arithmetic
from lightning_perf.analysis.model.attention import Attention, AttentionKind, LanguageModel
from lightning_perf.analysis.model.workload import OptimizerSteps
from lightning_perf.analysis.precision.amp_gain import AmpGain
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.steps.breakdown import Breakdown, CategoryTime, Outlier
from lightning_perf.analysis.steps.phases import PhaseTime
from lightning_perf.findings.savings import each, share_of_step, whole
from lightning_perf.report.labels import CATEGORY_LABELS, PHASE_LABELS, matrix_units
from lightning_perf.report.sections.device import device_parts, efficiency_section
from lightning_perf.report.sections.work import (
    MOST_ROWS,
    memory_section,
    memory_tables,
    regions_and_counters,
    work_parts,
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
    Table,
    TableRow,
    listing,
    note,
    rest,
    table,
)
from lightning_perf.show.plots import bars, of_total, time_axis
from lightning_perf.units import (
    NOT_AVAILABLE,
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_flop_rate,
    format_flops,
    format_rate,
    format_ratio,
    format_share,
)

MADE_BY = {"in_process": "the training process itself (num_workers=0)", "workers": "worker processes"}

MOST_HEIGHT = 400
"""Maximum height of the chart of steps in pixels; less if the table next to it is short."""

OVERLAPPING = 1.01
"""From this ratio of the sum of kernels' times to the time in which one runs, the report says that they overlap."""

MAX_CATEGORIES = 4
"""Categories with a column in the console's table of phases."""

PARTS = {
    "products": "products and convolutions without Tensor Cores",
    "products on Tensor Cores": "products and convolutions in TF32",
    "following": "kernels that read their results",
    "fixed": "unchanged kernels",
    "in 16 bits": "kernels in 16 bits or fewer already",
}


def rank_sections(rank: RankAnalysis, top: int) -> Iterator[Block]:
    """Yield the sections of the console that the recording supports, its tables cut to their first rows."""
    breakdown, steps = rank.breakdown, rank.breakdown.averaged_steps
    wall = format_duration(breakdown.wall.mean_ns)
    mean = f", mean of {steps}" if steps > 1 else ""
    yield Heading(f"Step time: {wall}{mean}" if breakdown.marked else f"Whole recording: {wall}")
    yield categories_table(breakdown)
    yield from (Line(_outlier_text(outlier), "warning") for outlier in breakdown.outliers)
    parts = _parts(rank, top)
    for name in ("phases", "arithmetic", "language_model"):
        yield from parts.get(name, ())
    if rank.efficiency is not None and rank.efficiency.devices:
        yield from efficiency_section(rank.efficiency)
    shown = ["launches", "idle", "gaps", "sync", *(["casts"] if rank.autocast and rank.autocast.count else [])]
    for name in (*shown, "communication", "memory", "operators", "kernels", "modules", "regions"):
        yield from parts.get(name, ())


def rank_parts(rank: RankAnalysis, most: int) -> dict[str, Iterable[Block]]:
    """Return the blocks of each part of one rank on the page, with so many rows of a long table."""
    of_what = each(rank)
    parts = _parts(rank, EVERY_ROW, most)
    parts |= {"steps": _steps(rank.breakdown), "breakdown": _breakdown(rank.breakdown)}
    if rank.breakdown.has_device:
        parts.setdefault("launches", [Line("This recording has no launch calls.", "quiet")])
    if (rank.metadata.world_size or 1) > 1:
        parts.setdefault("communication", [Line("No collective ran on this rank.", "quiet")])
    if rank.memory is not None:
        devices = rank.memory.devices
        parts["memory"] = [
            block for device in devices for block in (*memory_section(device, rank, EVERY_ROW), *memory_tables(device))
        ]
    if rank.amp_gain is not None:
        parts["gain"] = _gain(rank.amp_gain, of_what)
    if rank.loading is not None:
        parts["loading"] = _loading(rank.loading, of_what)
    if rank.optimizer is not None:
        parts["optimizer"] = _optimizer(rank.optimizer, of_what)
    return parts


def _parts(rank: RankAnalysis, top: int, most: int = MOST_ROWS) -> dict[str, Iterable[Block]]:
    """Return the parts that the console and the page have in common."""
    parts: dict[str, Iterable[Block]] = {
        "phases": _phases(rank),
        "language_model": language_model_sections(rank, top),
        "regions": regions_and_counters(rank, top),
    }
    if rank.arithmetic is not None and rank.arithmetic.compute_ns:
        parts["arithmetic"] = _arithmetic(rank, rank.arithmetic, each(rank))
    if rank.memory is not None:
        devices = rank.memory.devices
        parts["memory"] = (block for device in devices for block in memory_section(device, rank, top))
    return parts | device_parts(rank, top) | work_parts(rank, top, most)


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
        shown: tuple[str | Span, ...] = ()
        if step is not None:
            place = f"#view=timeline&time.from={step.start_ns}&time.to={step.start_ns + step.wall_ns}"
            shown = (" ", Span("Show it on the timeline", link=place))
        yield Line((_outlier_text(outlier), *shown), "warning")


def _breakdown(times: Breakdown) -> Iterator[Block]:
    several = len(times.steps) > 1
    title = "Time of the recording" if not times.marked else "Breakdown" if several else "Time of the step"
    averaged = f"mean of {times.averaged_steps} steps" if times.averaged_steps > 1 else "one step"
    yield Heading(title, definition="step-time-breakdown", aside=averaged if times.marked else "the whole recording")
    if not several:
        rows = [row for row in times.categories if row.mean_ns and row.parent is None]
        yield Bar("Step time by category", tuple(_time(row, CATEGORY_LABELS) for row in rows), legend=False)
    yield categories_table(times)


def categories_table(breakdown: Breakdown) -> Table:
    """Return the mean step time by category."""
    spread = breakdown.averaged_steps > 1
    rows: list[TableRow] = []
    for row in breakdown.categories:
        if not row.mean_ns:
            continue
        name = f"{'  ' if row.parent else ''}{CATEGORY_LABELS[row.name]}"
        share = Cell(format_share(row.share), row.share, bar=row.share if row.share and not row.parent else 0.0)
        between = (f"{format_duration(row.min_ns)} – {format_duration(row.max_ns)}",) if spread else ()
        color = "" if row.parent else row.name
        rows.append((Cell(name, style="quiet" if row.parent else "plain", color=color), row.mean_ns, share, *between))
    heads = ("category", "time", "share", "minimum–maximum")
    definitions = {"category": "step-time-breakdown"}
    return table(heads if spread else heads[:-1], rows, kinds="name duration share figure", definitions=definitions)


def _outlier_text(outlier: Outlier) -> str:
    """Return by how much an unusual step differs, and in which category."""
    more = f"{'+' if outlier.excess_ns > 0 else ''}{format_duration(outlier.excess_ns)}"
    return (
        f"Step {outlier.number} is an outlier: {format_duration(outlier.wall_ns)}, {more} mostly in "
        f"{CATEGORY_LABELS[outlier.category]}."
    )


def _phases(rank: RankAnalysis) -> Iterator[Block]:
    """Yield the mean step time by phase, and by phase and category, the largest categories first."""
    crossed, breakdown = rank.phases, rank.breakdown
    wall_ns = breakdown.wall.mean_ns or 1.0
    shown = [phase for phase in crossed.phases if phase.mean_ns]
    used = [row.name for row in breakdown.categories if row.parent is None and row.mean_ns]
    used.sort(key=lambda name: -(breakdown.category(name).mean_ns or 0.0))
    rows: list[TableRow] = []
    for phase in shown:
        times = [crossed.time_ns(phase.name, name) or None for name in used]
        cells = (Cell(format_duration(time), time, bar=(time or 0.0) / wall_ns) for time in times)
        rows.append((PHASE_LABELS[phase.name], phase.mean_ns, phase.share, *cells))
    heads = [CATEGORY_LABELS[name].replace(" ", "\n", 1) for name in used]
    yield Heading("Phases" if breakdown.marked else f"Phases, {each(rank)}", definition="phase-category")
    yield Bar("Time by phase", tuple(_time(phase, PHASE_LABELS) for phase in shown))
    yield table(
        ("phase", "time", "share", *heads),
        rows,
        kinds="name duration share" + " duration" * len(heads),
        extra=heads[MAX_CATEGORIES:],
    )


def _time(row: CategoryTime | PhaseTime, labels: Mapping[str, str]) -> Part:
    share = "" if row.share is None else f" {format_share(row.share)}"
    return Part(labels[row.name], row.mean_ns or 0.0, f"{format_duration(row.mean_ns)}{share}", row.name)


def _arithmetic(rank: RankAnalysis, found: Arithmetic, of_what: str) -> Iterator[Block]:
    """Yield the compute of the device by number format, and the products that do not run on matrix units."""
    steps, cores = max(found.steps, 1), matrix_units(rank.metadata)
    busy_ns, sum_ns = rank.breakdown.category("device_compute").mean_ns or 0.0, found.compute_ns / steps
    yield Heading(f"Arithmetic of device compute, {of_what}", definition="arithmetic")
    if busy_ns > 0 and sum_ns > OVERLAPPING * busy_ns:
        added, busy = format_duration(sum_ns), format_duration(busy_ns)
        yield note(f"Kernels overlap: their times add up to {added}, but the device computes for {busy} {of_what}.")
    used = [row for row in found.rows if row.time_ns]
    names = {row.name: row.name.upper() if row.name[0] in "ftb" else row.name for row in used}  # FP16, but integer
    parts = (Part(names[row.name], row.time_ns, format_duration(row.time_ns / steps), row.name) for row in used)
    yield Bar("Device compute by arithmetic", tuple(parts))
    rates = {rate.name: rate for rate in rank.efficiency.rates} if rank.efficiency is not None else {}
    rows: list[TableRow] = []
    for row in used:
        by = [what for what, part in (("operator types", row.by_operator_ns), ("kernel name", row.by_name_ns)) if part]
        rate = rates.get(row.name)
        reached = (format_flop_rate(rate.flops_per_s), rate.peak_share) if rate else (None, None)
        rows.append((names[row.name], row.time_ns / steps, row.share, *reached, ", ".join(by) or NOT_AVAILABLE))
    yield table(
        ("arithmetic", "time", "share", "products at", "of peak", "source"),
        rows,
        kinds="name duration share figure share text",
        definitions={"products at": "peak-share", "of peak": "peak-share"},
        extra=() if rates else ("products at", "of peak"),
    )
    if found.tensor_core_share is not None and names.keys() != {"unknown"}:
        unknown_ns = found.tensor_core_unknown_ns / steps
        unknown = f"; unknown: {format_duration(unknown_ns)}, {format_share(unknown_ns / sum_ns)}" if unknown_ns else ""
        yield Line(f"On {cores}: {format_share(found.tensor_core_share)} of compute time{unknown}.")
    for unused in found.eligible_unused:
        yield Line(
            f"Matrix products without {cores}: {format_duration(unused.time_ns / steps)} {of_what} in "
            f"{counted(unused.kernels / steps, 'kernel')}, because {REASONS[unused.reason]} "
            f"({', '.join(unused.operators)}).",
            "warning",
        )


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


def _loading(loading: Loading, of_what: str) -> Iterator[Block]:
    """Yield how batches are fetched and moved."""
    steps = max(loading.steps, 1)
    yield Heading(f"Batch loading, {of_what}", definition="batch-loading")
    for label, text in (
        ("Batches made by", MADE_BY.get(str(loading.loader), "not in the recording")),
        ("Fetches", format_count(loading.fetches / steps)),
        ("Time in fetches", format_duration(loading.fetch_ns / steps)),
        ("of it in operators", format_duration(loading.operator_ns / steps)),
    ):
        yield Line(text, label=label)
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


def language_model_sections(analysis: RankAnalysis, top: int) -> Iterator[Block]:
    """Yield tokens and FLOPs of a language model, its attention, and the forward work that the backward repeats."""
    if analysis.language_model is not None:
        yield Heading("Language model", definition="tokens")
        yield from listing(_language_model(analysis.language_model))
    if analysis.attention is not None:
        yield Heading(f"Attention, {each(analysis)}", definition="attention")
        yield from _attention(analysis.attention, top)
    if analysis.recompute is not None:
        yield Heading("Gradient checkpointing", definition="repeated-forward-work")
        repeated = analysis.recompute
        time_ns = repeated.time_ns / max(repeated.steps, 1)
        where = "of the device" if repeated.on_device else "of the host"
        share = "" if repeated.on_device else f", {share_of_step(time_ns, analysis)} of {whole(analysis)}"
        yield Line(f"The backward repeats forward work: {format_duration(time_ns)} {where} {each(analysis)}{share}")


def _language_model(model: LanguageModel) -> Iterator[str]:
    """Yield the facts about tokens in one line, then those about FLOPs."""
    rate, per_token = model.tokens_per_second, model.flops_per_token
    facts = [f"{counted(model.tokens_per_step, 'token')} per step"]
    if rate is not None:
        facts.append(f"{format_rate(rate, 'tokens')} under the profiler")
    if model.padding is not None:
        facts.append(f"{format_share(model.padding)} padding")
        if rate is not None and model.padding:
            facts.append(format_rate(rate * (1 - model.padding), "real tokens"))
    yield " · ".join(facts)
    if per_token is not None:
        text = f"{format_flops(per_token)} per token, forward and backward"
        if model.formula_flops_per_token is not None and model.parameters is not None:
            ratio = format_ratio(per_token / model.formula_flops_per_token)
            attention = " + 12·L·d·T" if model.attention_flops_per_token else ""
            text += f": {ratio} the formula 6N{attention} (N = {format_count(model.parameters)} parameters)"
        yield text
    if model.formula_mfu is not None:
        yield f"MFU by the formula, under the profiler: {format_share(model.formula_mfu)}"


def _attention(attention: Attention, top: int) -> Iterator[Block]:
    steps = max(attention.steps, 1)
    yield table(
        ("implementation", "calls", "device" if attention.on_device else "host", "inputs"),
        (
            (kind.implementation, kind.calls / steps, kind.time_ns / steps, _inputs(kind))
            for kind in attention.kinds[:top]
        ),
        kinds="name count duration text",
    )
    yield from rest(len(attention.kinds) - top, "row")


def _inputs(kind: AttentionKind) -> str:
    facts = [f"{'×'.join(map(str, kind.query))} queries"] if kind.query else []
    facts += [counted(kind.keys, "key")] if kind.keys else []
    facts += [kind.type.removeprefix("c10::")] if kind.type else []
    facts += ["causal"] if kind.causal else []
    facts += ["with a mask"] if kind.mask else []
    facts += [f"dropout {kind.dropout:g}"] if kind.dropout else []
    return ", ".join(facts)
