"""The compilations of a fit."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_perf.analysis.compilation.summary import CompiledFrame, CompileReport
from lightning_perf.findings.compilation import frame_name, line_name, step_range
from lightning_perf.findings.fit import of_fit
from lightning_perf.findings.savings import counted
from lightning_perf.report.labels import count_of
from lightning_perf.report.sections.fit_time import part_text
from lightning_perf.show.blocks import EVERY_ROW, Bar, Block, Cell, Heading, Line, Part, TableRow, table
from lightning_perf.units import format_duration

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
    yield from _facts(report)
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


def _facts(report: CompileReport) -> Iterator[Line]:
    facts = [f"{count_of(report.compilations, 'compilation')}: {of_fit(report.time_ns, report.fit_ns)}"]
    facts += [f"{format_duration(time)} {name}" for name, field, _ in MOMENTS if (time := getattr(report, field))]
    yield Line(" · ".join(facts))
    if report.recompilations:
        again = format_duration(report.recompile_ns)
        were = "was a recompilation" if report.recompilations == 1 else "were recompilations"
        yield Line(f"{report.recompilations:,} of them {were}, {again} in all.")
    if report.cache_hits or report.cache_misses:
        hits, misses = report.cache_hits or 0, report.cache_misses or 0
        yield Line(f"Inductor's cache had {hits:,} of {count_of(hits + misses, 'graph')}.")
    if report.check_ns_per_step is not None and report.checks_per_step is not None:
        parts = [f"{format_duration(report.check_ns_per_step)} in {counted(report.checks_per_step, 'check')} of guards"]
        if report.recorded_ns_per_step:
            parts.append(f"{format_duration(report.recorded_ns_per_step)} in compilation")
        yield Line(f"Per recorded step: {', '.join(parts)}.")


def _frame(frame: CompiledFrame) -> TableRow:
    module = f"  {frame.module}" if frame.module else ""
    return (
        Cell(frame_name(frame), troubled=frame.limit_reached, detail=module),
        frame.time_ns,
        frame.backend_ns,
        frame.compilations,
        Cell(f"{frame.breaks:,}" if frame.breaks else "", frame.breaks),
        frame.guards,
        frame.check_ns_per_step,
    )
