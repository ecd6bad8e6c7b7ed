"""The report as console text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.steps.step_times import StepTimes
from lightning_perf.analysis.trust import Trust
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.whole_run import HeldBack
from lightning_perf.probe.rendering import probe_parts
from lightning_perf.report.captured import Captured
from lightning_perf.report.console.compilation import compilation_section
from lightning_perf.report.console.fit_time import fit_time_section
from lightning_perf.report.console.forecast import forecast_section
from lightning_perf.report.console.fp8_layers import fp8_section
from lightning_perf.report.console.layout import device_line, hanging, ranks_table, rule_link, table, verdict_block
from lightning_perf.report.console.precision import bad_run_section, mistakes_section, precision_section
from lightning_perf.report.console.rank import rank_sections
from lightning_perf.report.console.shadow import shadow_section
from lightning_perf.report.document import PerfReport
from lightning_perf.report.labels import count_of
from lightning_perf.report.sentences import trust_line
from lightning_perf.report.verdict import saving_text
from lightning_perf.run_files.fit.out_of_memory import OutOfMemory
from lightning_perf.terminal_text import UNBREAKABLE, ascii_fallback, plain, prose
from lightning_perf.units import format_bytes, format_duration, format_rate, format_share

__all__ = [
    "ReportConsole",
    "captures_section",
    "findings_section",
    "held_back_section",
    "out_of_memory_section",
    "print_report",
    "render",
    "step_times_section",
    "trust_text",
]


STYLES = {"high": "bold red", "moderate": "yellow", "low": "cyan"}


def findings_section(
    findings: Sequence[Finding], lead: RankAnalysis | None, *, title: str = "Findings", start: int = 1
) -> Iterator[RenderableType]:
    """One block per finding, the most to save first, and how to read more about them.

    Args:
        findings: The findings.
        lead: The rank with the step time that the savings are a share of.
        title: Title of the section.
        start: Number of the first finding.
    """
    several = lead is not None and (lead.metadata.world_size or 1) > 1
    yield Text(f"\n{title}", style="bold")
    for number, finding in enumerate(findings, start=start):
        whose = f", rank {finding.rank}" if several and finding.rank is not None else ""
        heading = prose(finding.title, STYLES[finding.severity])
        severity = f" · {finding.severity}{whose}]".replace(" ", UNBREAKABLE)
        details = ("  [", rule_link(finding), severity)
        yield hanging(f"{number}.", Text.assemble(heading, *details), gap=1)
        lines = [*(prose(line) for line in finding.evidence), Text.assemble(("Fix: ", "green"), prose(finding.action))]
        saving = saving_text(finding, lead)
        if saving:
            lines.append(prose(f"{saving} {finding.model}", "dim"))
        yield Padding(Text("\n").join(lines), (0, 0, 0, 3))
    yield Text.assemble("About a finding: ", plain(f"lightning-perf explain {findings[0].kind}", "cyan"))


def held_back_section(held_back: Sequence[HeldBack]) -> Iterator[RenderableType]:
    """One paragraph for each finding that is held back, with the reason."""
    yield Text("\nHeld back", style="bold")
    for each in held_back:
        title = Text.assemble(prose(each.finding.title), "  [", rule_link(each.finding), "]  ")
        yield hanging("-", Text.assemble(title, prose(each.reason, "dim")), gap=1)


def trust_text(trust: Trust) -> Text:
    """Say how far the figures can be trusted, in yellow if only partly."""
    doubtful = not trust.sound or any(window.returned is False for window in trust.windows)
    return Text.assemble(("Trust ", "yellow" if doubtful else "green"), prose(trust_line(trust)))


def captures_section(captures: Sequence[Captured]) -> RenderableType:
    """Describe each capture: the moment, how slow the steps were, and the differences."""
    lines: list[Text] = []
    for capture in captures:
        lines.append(Text.assemble(plain(capture.folder, "cyan"), f"  {capture.trigger.value}"))
        lines += [prose(f"  {sentence}") for sentence in capture.evidence]
    return Group(*lines)


NOTABLE_CHANGE = 0.05


def step_times_section(times: StepTimes) -> RenderableType:
    """Return percentiles of the step time, the wait for data, throughput, and changes over the run."""
    grid = table("", "mean", "p50", "p90", "p99")
    grid.add_row("step", *(format_duration(t) for t in (times.mean_ns, times.p50_ns, times.p90_ns, times.p99_ns)))
    grid.add_row("data wait", format_duration(times.data_wait_mean_ns), "", format_duration(times.data_wait_p90_ns), "")
    if times.device_mean_ns is not None:
        grid.add_row("device, without data wait", format_duration(times.device_mean_ns), "", "", "")
    facts = [f"{count_of(times.steps, 'step')}", f"{format_share(times.data_wait_share)} waiting for data"]
    if times.samples_per_second is not None:
        facts.append(format_rate(times.samples_per_second, "samples"))
    if times.tokens_per_second is not None:
        facts.append(format_rate(times.tokens_per_second, "tokens"))
    left_out = [f"{times.warmup_steps} to warm up"] if times.warmup_steps else []
    left_out += [f"{times.profiled_steps} profiled"] if times.profiled_steps else []
    if left_out:
        facts.append(f"left out: {', '.join(left_out)}")
    lines = [Text(" · ".join(facts))]
    if times.only_profiled:
        said = "Every step after the warm-up was profiled: these times include the profiler's own cost."
        lines.append(Text(said, style="yellow"))
    for change, what in (
        (times.drift, "The last quarter of the run was {} than the first."),
        (times.after_profiling, "Steps after the profiled ones were {} than those before."),
    ):
        if change is not None and abs(change) >= NOTABLE_CHANGE:
            amount = f"{format_share(abs(change))} {'slower' if change > 0 else 'faster'}"
            lines.append(Text(what.format(amount), style="yellow"))
    if times.outlier_steps:
        longest = times.outliers[0]
        lines.append(
            Text(
                f"{count_of(times.outlier_steps, 'outlier')}, together {format_duration(times.outlier_excess_ns)} "
                f"over the median. The longest is step {longest.step} with {format_duration(longest.step_ns)}."
            )
        )
    return Group(grid, *lines)


MAX_SOURCES = 4


def print_report(report: PerfReport, *, file: IO[str] | None, top: int, width: int | None) -> None:
    """Print a report; see `PerfReport.print`."""
    console = ReportConsole(file=file, width=width, highlight=False, emoji=False, markup=False)
    for part in render(report, top=top):
        # A path on a line of its own is for copying: the terminal may wrap it, but we must not.
        console.print(part, soft_wrap=isinstance(part, Text) and part.no_wrap)


def render(report: PerfReport, *, top: int) -> Iterator[RenderableType]:
    """Yield the parts of the report, in order.

    Args:
        report: The report.
        top: Rows of the tables of operators, kernels and the like.

    Yields:
        Parts that rich can print.
    """
    yield verdict_block(report.verdict)
    lead = None if report.lead is None else report.ranks[report.lead]
    if lead is not None:
        yield plain(device_line(report, lead), "dim")
    for note in report.notes:
        yield hanging("Note", prose(note), style="yellow")
    if report.out_of_memory:
        yield from _section("Out of memory", out_of_memory_section(report.out_of_memory))
    if report.trust is not None:
        yield trust_text(report.trust)
    if report.findings:
        yield from findings_section(report.findings, lead)
    if report.fit_findings:
        yield from findings_section(
            report.fit_findings, lead, title="Findings of the whole fit", start=len(report.findings) + 1
        )
    if report.held_back:
        yield from held_back_section(report.held_back)
    if report.precision is not None and report.precision.bad_run is not None:
        yield from bad_run_section(report.precision.bad_run)
    if report.precision is not None and report.precision.mistakes:
        yield from mistakes_section(report.precision.mistakes)
    if len(report.ranks) > 1:
        yield from _section("Ranks", ranks_table(report))
    if lead is not None:
        for title, body in rank_sections(lead, top):
            yield from _section(title, body)
    for rank in report.ranks:
        if rank.probe is not None:
            yield from _section("Probe", Group(*probe_parts(rank.probe, top)))
    if report.fit_time is not None:
        yield from _section("Time of the whole fit", fit_time_section(report.fit_time))
    if report.compilation is not None:
        yield from _section("Compilation", compilation_section(report.compilation, top))
    if report.step_times is not None:
        yield from _section("Step times without the profiler", step_times_section(report.step_times))
    if report.captures:
        yield from _section("Captures", captures_section(report.captures))
    if report.precision is not None:
        yield from _section("Precision", precision_section(report.precision, top))
    if report.fp8 is not None:
        yield from _section("FP8 layers", fp8_section(report.fp8, top))
    if report.shadow is not None:
        yield from _section("Shadow steps in FP32", shadow_section(report.shadow, top))
    if report.forecast is not None:
        yield from _section("Forecast of number formats", forecast_section(report.forecast, top))
    if report.sources:
        yield Text("\nTraces", style="bold")
        yield from _sources(report)


def out_of_memory_section(failures: tuple[OutOfMemory, ...]) -> RenderableType:
    """Show the memory of each rank that ran out of it, and the fixes.

    Args:
        failures: The state of the ranks at that moment.
    """
    parts: list[RenderableType] = []
    for failure in failures:
        parts.append(prose(failure.sentence))
        parts.append(Text(", ".join(f"{name} {format_bytes(size)}" for name, size in failure.sizes)))
        parts += [hanging("Fix" if number == 0 else "Or ", prose(fix)) for number, fix in enumerate(failure.fixes)]
        if failure.snapshot is not None:
            parts.append(plain(f"Snapshot of the allocator, for lightning-perf analyze: {failure.snapshot}"))
        parts.append(plain(failure.message, "dim"))
    return Group(*parts)


def _section(title: str, body: RenderableType) -> Iterator[RenderableType]:
    yield Text(f"\n{title}", style="bold")
    yield body


class ReportConsole(Console):
    """A console with a reader that may close the pipe, or a stream that cannot encode Unicode."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with spaces for the blanks at which lines must not break."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text.replace(UNBREAKABLE, " "), style, control)

    @property
    def file(self) -> IO[str]:
        """Return the stream that it prints to, which replaces characters that cannot be shown there."""
        return cast(IO[str], _LegibleStream(super().file))

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def on_broken_pipe(self) -> None:
        """Leave the error to the caller. rich would end the process, which may be a training."""
        raise


@dataclass(frozen=True)
class _LegibleStream:
    """A stream that replaces characters outside its encoding and, except on a terminal, strips trailing blanks."""

    stream: IO[str]

    def write(self, text: str) -> int:
        if not self.stream.isatty():
            text = _TRAILING.sub("", text)
        return self.stream.write(ascii_fallback(text, getattr(self.stream, "encoding", None)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


_TRAILING = re.compile(r" +$", re.MULTILINE)


def _sources(report: PerfReport) -> Iterator[Text]:
    shown = report.sources[:MAX_SOURCES]
    lines = [plain(source) for source in shown]
    if len(report.sources) > len(shown):
        lines.append(Text(f"… and {len(report.sources) - len(shown)} more", style="dim"))
    lines.append(Text.assemble("Timeline: ", plain(f"lightning-perf view {shlex.quote(shown[0])}", "cyan")))
    for line in lines:
        line.no_wrap = True
        yield line
