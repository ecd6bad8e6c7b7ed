"""A whole fit: where its time went, its step times, and its compilations."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from lightning_perf.analysis.compilation import CompiledFrame, CompileReport
from lightning_perf.analysis.steps.fit_time import FitGroup, FitPart, FitTime
from lightning_perf.analysis.steps.step_times import StepTimes
from lightning_perf.findings.compilation import frame_name, line_name, step_range
from lightning_perf.findings.fit import of_fit
from lightning_perf.run_files.fit.account import FULL_GENERATION
from lightning_perf.show.blocks import EVERY_ROW, Bar, Block, Cell, Heading, Line, Part, TableRow, table
from lightning_perf.units import counted, format_duration, format_rate, format_share

MAX_PARTS = 4
"""Parts of a group that the table shows."""

LEAST_PART = 0.001
"""Share of the fit from which the table shows a part."""

NAMED_GROUPS = 3

NOTABLE_CHANGE = 0.05

ENDS = {
    "report": "The account ends where this report is made. The tear-down of the Trainer comes after it.",
    "exception": "The account ends at the error that ended the fit.",
}


COLORS = {
    "set-up": "runtime_alloc",
    "data preparation": "memcpy",
    "worker start-up": "input",
    "sanity check": "memset",
    "first step": "backward",
    "training steps": "forward",
    "epoch boundaries": "unknown",
    "validation": "validation",
    "checkpoints": "checkpoint",
    "logging": "runtime_other",
    "callbacks": "device_compute",
    "own cost": "transfer",
    "tear-down": "other",
}
"""Colours of the groups on the page."""


NAMES = {"own cost": "PerfCallback itself"}
"""Names of groups in a sentence."""


def fit_sentence(fit: FitTime) -> str:
    """Return the time of a fit and its largest groups in a sentence."""
    largest = sorted(fit.groups, key=lambda group: -group.time_ns)[:NAMED_GROUPS]
    parts = ", ".join(f"{format_share(group.share)} {NAMES.get(group.group, group.group)}" for group in largest)
    return f"The fit takes {format_duration(fit.wall_ns)}: {parts}."


def mostly_steps(fit: FitTime) -> bool:
    """Return whether the steps are the largest part of a fit. Otherwise their findings are about a small part of it."""
    return max(fit.groups, key=lambda group: group.time_ns).group == "training steps" if fit.groups else True


NOTABLE_CORE_WAIT = 0.05
"""Share of the fit in waits for a core from which the report names them."""


def fit_time_section(fit: FitTime, top: int = EVERY_ROW) -> Iterator[Block]:
    """Yield the groups of a fit with their parts, on the console the largest ones, and the figures of the whole fit."""
    yield Heading("Time of the whole fit", definition="time-of-the-whole-fit")
    timed = [group for group in fit.groups if group.time_ns]
    colors = (COLORS.get(group.group, "other") for group in timed)
    bars = ((g.group, g.time_ns, part_text(g.time_ns, fit.wall_ns), c) for g, c in zip(timed, colors, strict=True))
    yield Bar("Time of the whole fit", tuple(Part(*bar) for bar in bars), fit.wall_ns)
    rows: list[TableRow] = []
    parents: list[int | None] = []
    for group in fit.groups:
        above = len(rows)
        rows.append((group.group, group.time_ns, group.share, _calls(group)))
        parents.append(None)
        shown = [part for part in group.parts if part.name]
        if top != EVERY_ROW:
            shown = [part for part in shown if part.share >= LEAST_PART][:MAX_PARTS]
        if len(shown) == 1 and len([part for part in group.parts if part.time_ns]) == 1:
            continue
        rows += [(f"  {part.name}", part.time_ns, part.share, _count(part)) for part in shown]
        parents += [above] * len(shown)
    found = table(("", "time", "share", "calls"), rows, kinds="name duration share figure")
    yield replace(found, parents=tuple(parents))
    yield from _facts(fit)


def _facts(fit: FitTime) -> Iterator[Line]:
    facts = [f"{format_duration(fit.wall_ns)} in all", counted(fit.steps, "step"), counted(fit.epochs, "epoch")]
    if fit.first_step_ns is not None:
        facts.append(f"first step complete after {format_duration(fit.first_step_ns)}")
    if fit.samples_per_second is not None:
        rates = [format_rate(fit.samples_per_second, "samples")]
        if fit.tokens_per_second is not None:
            rates.append(format_rate(fit.tokens_per_second, "tokens"))
        facts.append(f"{' and '.join(rates)} over the whole fit")
    yield Line(" · ".join(facts))
    if fit.core_wait_ns is not None and fit.core_wait_ns >= NOTABLE_CORE_WAIT * fit.wall_ns:
        waited = part_text(fit.core_wait_ns, fit.wall_ns)
        yield Line(
            f"The training thread waited for a core: {waited}. Other threads or programs kept the cores busy.",
            "warning",
        )
    for each in fit.collections:
        if each.generation == FULL_GENERATION and each.time_ns >= LEAST_PART * fit.wall_ns:
            yield Line(
                f"{counted(each.count, 'full garbage collection')} in the steps, together "
                f"{part_text(each.time_ns, fit.wall_ns)}. The longest takes {format_duration(each.longest_ns)}."
            )
    around = [
        (fit.before_ns, "Before the fit, the process took {} for imports, data and the Trainer."),
        # While the report is printed, its time is not known.
        (0 if fit.end == "report" else fit.report_ns, "After the training, this report took {}."),
    ]
    yield from (Line(text.format(format_duration(time_ns))) for time_ns, text in around if time_ns)
    if fit.end in ENDS:
        yield Line(ENDS[fit.end], "quiet")


def part_text(time_ns: float, total_ns: float) -> str:
    """Return a time and its share of a total."""
    return f"{format_duration(time_ns)}, {format_share(time_ns / total_ns)}"


def step_times_section(times: StepTimes) -> Iterator[Block]:
    """Yield percentiles of the step time, the wait for data, throughput, and changes over the run."""
    yield Heading("Step times without the profiler", definition="step-timer")
    rows: list[TableRow] = [
        ("step", times.mean_ns, times.p50_ns, times.p90_ns, times.p99_ns),
        ("data wait", times.data_wait_mean_ns, times.data_wait_p50_ns, times.data_wait_p90_ns, ""),
    ]
    if times.device_mean_ns is not None:
        rows.append(("device, without data wait", times.device_mean_ns, "", "", ""))
    yield table(("", "mean", "p50", "p90", "p99"), rows, kinds="name" + " duration" * 4)
    facts = [f"{counted(times.steps, 'step')}", f"{format_share(times.data_wait_share)} waiting for data"]
    if times.samples_per_second is not None:
        facts.append(format_rate(times.samples_per_second, "samples"))
    if times.tokens_per_second is not None:
        facts.append(format_rate(times.tokens_per_second, "tokens"))
    if times.mfu is not None:
        facts.append(f"MFU {format_share(times.mfu)}")
    left_out = [f"{times.warmup_steps} to warm up"] if times.warmup_steps else []
    left_out += [f"{times.profiled_steps} profiled"] if times.profiled_steps else []
    if left_out:
        facts.append(f"left out: {', '.join(left_out)}")
    yield Line(" · ".join(facts))
    if times.only_profiled:
        text = "Every step after the warm-up was profiled: these times include the profiler's own cost."
        yield Line(text, "warning")
    for change, text in (
        (times.drift, "The last quarter of the run was {} than the first."),
        (times.after_profiling, "Steps after the profiled ones were {} than those before."),
    ):
        if change is not None and abs(change) >= NOTABLE_CHANGE:
            amount = f"{format_share(abs(change))} {'slower' if change > 0 else 'faster'}"
            yield Line(text.format(amount), "warning")
    if times.outlier_steps:
        longest = times.outliers[0]
        waits = ""
        if times.outlier_wait_ns is not None and times.outlier_excess_ns:
            share = format_share(min(1.0, times.outlier_wait_ns / times.outlier_excess_ns))
            waits = f" ({share} of it waiting for data)"
        yield Line(
            f"{counted(times.outlier_steps, 'outlier')}, together {format_duration(times.outlier_excess_ns)} "
            f"over the median{waits}. The longest is step {longest.step} with {format_duration(longest.step_ns)}."
        )


def _calls(group: FitGroup) -> str:
    return _count(group.parts[0]) if len(group.parts) == 1 else ""


def _count(part: FitPart) -> str:
    return f"{part.count:,}" if part.count else ""


MOMENTS = (
    ("before training", "before_ns", "runtime_alloc"),
    ("in the first step", "first_step_ns", "backward"),
    ("in later steps", "step_ns", "forward"),
    ("between steps", "between_ns", "validation"),
)
"""When functions compile, with the field that has the time, and its colour."""


def compilation_section(report: CompileReport, top: int = EVERY_ROW) -> Iterator[Block]:
    """Yield the functions, the time of all compilations, and the reasons to compile again."""
    yield Heading("Compilation", definition="compilation")
    times = ((name, getattr(report, field), color) for name, field, color in MOMENTS)
    parts = (
        Part(name, time_ns, part_text(time_ns, report.time_ns), color) for name, time_ns, color in times if time_ns
    )
    yield Bar("Time of compilations", tuple(parts), report.time_ns)
    yield table(
        ("function", "time", "backend", "versions", "breaks", "guards", "checks per step"),
        map(_frame, report.frames[:top]),
        kinds="code duration duration count figure count duration",
        definitions={
            "backend": "backend-time",
            "breaks": "graph-break",
            "guards": "guard",
            "checks per step": "guard-checks",
        },
        extra=("checks per step",),
    )
    yield from _compile_facts(report)
    again = [(frame, group) for frame in report.frames for group in frame.recompilations]
    again.sort(key=lambda row: -row[1].time_ns)
    yield table(
        ("function", "cause", "failed guard", "count", "time", "steps"),
        (
            (
                frame_name(frame),
                group.cause,
                group.guard,
                group.count,
                group.time_ns,
                step_range(group.first_step, group.last_step).removeprefix("in step").removeprefix("s").strip(),
            )
            for frame, group in again[:top]
        ),
        "Recompilations",
        "code text text count duration text",
        definition="recompilation",
        definitions={"failed guard": "guard"},
    )
    yield table(
        ("line", "code", "reason", "compilations", "per step"),
        (
            (line_name(each.file, each.line), each.code, each.reason, each.compilations, each.calls_per_step)
            for each in report.breaks[:top]
        ),
        "Graph breaks",
        "code code text count count",
        definition="graph-break",
    )
    yield table(
        ("reason", "graphs", "functions"),
        ((each.reason, each.count, ", ".join(each.functions)) for each in report.skipped_graphs[:top]),
        "Without a CUDA graph",
        "text count code",
        definition="skipped-cuda-graph",
    )


def _compile_facts(report: CompileReport) -> Iterator[Line]:
    facts = [f"{counted(report.compilations, 'compilation')}: {of_fit(report.time_ns, report.fit_ns)}"]
    facts += [f"{format_duration(time)} {name}" for name, field, _ in MOMENTS if (time := getattr(report, field))]
    yield Line(" · ".join(facts))
    if report.recompilations:
        again = format_duration(report.recompile_ns)
        were = "was a recompilation" if report.recompilations == 1 else "were recompilations"
        yield Line(f"{report.recompilations:,} of them {were}, {again} in all.")
    if report.cache_hits or report.cache_misses:
        hits, misses = report.cache_hits or 0, report.cache_misses or 0
        yield Line(f"Inductor's cache had {hits:,} of {counted(hits + misses, 'graph')}.")
    if report.check_ns_per_step is not None and report.checks_per_step is not None:
        parts = [f"{format_duration(report.check_ns_per_step)} in {counted(report.checks_per_step, 'check')} of guards"]
        if report.recorded_ns_per_step:
            parts.append(f"{format_duration(report.recorded_ns_per_step)} in compilation")
        yield Line(f"Per recorded step: {', '.join(parts)}.")


def _frame(frame: CompiledFrame) -> TableRow:
    name = frame_name(frame)
    module = f"  {frame.module}" if frame.module and frame.module not in name else ""
    return (
        Cell(name, troubled=frame.limit_reached, detail=module),
        frame.time_ns,
        frame.backend_ns,
        frame.compilations,
        Cell(f"{frame.breaks:,}" if frame.breaks else "", frame.breaks),
        frame.guards,
        frame.check_ns_per_step,
    )
