"""The compilations of a fit on the console."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from lightning_perf.analysis.compilation.summary import BreakPlace, CompiledFrame, CompileReport, Recompilations
from lightning_perf.findings.compilation import frame_name, line_name, of_fit, step_range
from lightning_perf.findings.savings import counted
from lightning_perf.report.console.layout import hanging, label, table
from lightning_perf.report.labels import count_of
from lightning_perf.terminal_text import prose
from lightning_perf.units import NOT_AVAILABLE, format_count, format_duration

__all__ = ["compilation_section"]

TRUNCATED = 120
"""Characters of a condition or a reason that the console shows."""


def compilation_section(report: CompileReport, top: int) -> RenderableType:
    """Return the time of all compilations, a table of the functions, and the reasons to compile again.

    Args:
        report: The compilations.
        top: Rows of the table, and of each list below it.
    """
    moments = (
        (report.before_ns, "before training"),
        (report.first_step_ns, "in the first step"),
        (report.step_ns, "in later steps"),
        (report.between_ns, "between steps"),
    )
    facts = [f"{count_of(report.compilations, 'compilation')}: {of_fit(report.time_ns, report)}"]
    facts += [f"{format_duration(time_ns)} {moment}" for time_ns, moment in moments if time_ns]
    lines = [Text(" · ".join(facts))]
    if report.recompilations:
        again = format_duration(report.recompile_ns)
        were = "was a recompilation" if report.recompilations == 1 else "were recompilations"
        lines.append(Text(f"{report.recompilations:,} of them {were}, {again} in all."))
    if report.cache_hits or report.cache_misses:
        hits, misses = report.cache_hits or 0, report.cache_misses or 0
        lines.append(Text(f"Inductor's cache had {hits:,} of {count_of(hits + misses, 'graph')}."))
    if report.check_ns_per_step is not None and report.checks_per_step is not None:
        parts = [f"{format_duration(report.check_ns_per_step)} in {counted(report.checks_per_step, 'check')} of guards"]
        if report.recorded_ns_per_step:
            parts.append(f"{format_duration(report.recorded_ns_per_step)} in compilation")
        lines.append(Text(f"Per recorded step: {', '.join(parts)}."))
    return Group(_frames(report, top), *lines, *_lists(report, top))


def _frames(report: CompileReport, top: int) -> RenderableType:
    grid = table("function", "time", "backend", "versions", "breaks", "guards")
    for frame in report.frames[:top]:
        grid.add_row(
            label(
                frame_name(frame), "yellow" if frame.limit_reached else "", f"  {frame.module}" if frame.module else ""
            ),
            format_duration(frame.time_ns),
            format_duration(frame.backend_ns) if frame.backend_ns is not None else NOT_AVAILABLE,
            f"{frame.compilations:,}",
            f"{frame.breaks:,}" if frame.breaks else "",
            f"{frame.guards:,}" if frame.guards is not None else NOT_AVAILABLE,
        )
    return grid


def _lists(report: CompileReport, top: int) -> Iterator[RenderableType]:
    rows = [(frame, group) for frame in report.frames for group in frame.recompilations]
    rows.sort(key=lambda row: -row[1].time_ns)
    for title, items in (
        ("Recompilations", [_recompilation(*row) for row in rows[:top]]),
        ("Graph breaks", list(map(_break, report.breaks[:top]))),
        ("Without a CUDA graph", [f"{each.count:,} × {each.reason}" for each in report.skipped_graphs[:top]]),
    ):
        if items:
            yield Text(f"{title}:", style="dim")
            for item in items:
                yield hanging("-", prose(item), gap=1)


def _recompilation(frame: CompiledFrame, group: Recompilations) -> str:
    cost = f"{group.count:,} × {step_range(group.first_step, group.last_step)}, {format_duration(group.time_ns)}"
    return f"{frame_name(frame)}: {cost}, {group.cause}: {_short(group.guard)}"


def _break(each: BreakPlace) -> str:
    entered = f", entered {format_count(each.calls_per_step)} × per step" if each.calls_per_step else ""
    return f"{line_name(each.file, each.line)}{entered}: {_short(each.code or each.reason)}"


def _short(text: str) -> str:
    return text if len(text) <= TRUNCATED else f"{text[: TRUNCATED - 1]}…"
