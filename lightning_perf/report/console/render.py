"""The order of the report on the console: the verdict, then what it rests on, then the tables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from lightning_perf.legible import legible
from lightning_perf.report.console.findings import findings_section
from lightning_perf.report.console.precision import precision_section
from lightning_perf.report.console.rank import rank_sections
from lightning_perf.report.console.safe import UNBREAKABLE, plain, prose
from lightning_perf.report.console.step_times import step_times_section
from lightning_perf.report.console.summary import device_line, hanging, ranks_table, verdict_block
from lightning_perf.report.console.trust import captures_section, trust_text
from lightning_perf.report.document import PerfReport

__all__ = ["ReportConsole", "print_report", "render"]

MAX_SOURCES = 4


def print_report(report: PerfReport, *, file: IO[str] | None, top: int, width: int | None) -> None:
    """Print a report; see `PerfReport.print`."""
    console = ReportConsole(file=file, width=width, highlight=False, emoji=False, markup=False)
    for part in render(report, top=top):
        # A path on its own line is for copying: the terminal may wrap it, we may not.
        console.print(part, soft_wrap=isinstance(part, Text) and part.no_wrap)


def render(report: PerfReport, *, top: int) -> Iterator[RenderableType]:
    """The parts of the report, in order.

    Args:
        report: The report.
        top: Rows of the tables of operators, kernels and the like.

    Yields:
        What rich prints.
    """
    yield verdict_block(report.verdict)
    lead = None if report.lead is None else report.ranks[report.lead]
    if lead is not None:
        yield plain(device_line(report, lead), "dim")
    for note in report.notes:
        yield hanging("Note", prose(note), style="yellow")
    if report.trust is not None:
        yield trust_text(report.trust)
    if report.findings:
        yield from findings_section(report.findings, lead)
    if len(report.ranks) > 1:
        yield from _section("Ranks", ranks_table(report))
    if lead is not None:
        for title, body in rank_sections(lead, top):
            yield from _section(title, body)
    if report.step_times is not None:
        yield from _section("Step times without the profiler", step_times_section(report.step_times))
    if report.captures:
        yield from _section("Captures", captures_section(report.captures))
    if report.precision is not None:
        yield from _section("Precision", precision_section(report.precision, top))
    if report.sources:
        yield Text("\nTraces", style="bold")
        yield from _sources(report)


def _section(title: str, body: RenderableType) -> Iterator[RenderableType]:
    yield Text(f"\n{title}", style="bold")
    yield body


class ReportConsole(Console):
    """A console whose reader may leave, and may know no Unicode."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with spaces for the blanks at which lines must not break."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text.replace(UNBREAKABLE, " "), style, control)

    @property
    def file(self) -> IO[str]:
        """Where it prints to, in the characters that can be shown there."""
        return cast(IO[str], _LegibleStream(super().file))

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def on_broken_pipe(self) -> None:
        """Leave the error to the caller; rich would end the process, which may be a training."""
        raise


@dataclass(frozen=True)
class _LegibleStream:
    """A stream that gets nothing its encoding lacks, and, unless it is a terminal, no blanks at the ends of lines."""

    stream: IO[str]

    def write(self, text: str) -> int:
        if not self.stream.isatty():
            text = _TRAILING.sub("", text)
        return self.stream.write(legible(text, getattr(self.stream, "encoding", None)))

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
