"""The short report that a fit ends with: the verdict, the findings' titles and savings, and the way to the rest."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rich.console import RenderableType
from rich.text import Text

from lightning_perf.findings.finding import Finding
from lightning_perf.report.console.fit_time import fit_sentence
from lightning_perf.report.console.layout import hanging, rule_link
from lightning_perf.report.console.precision import mistake_line
from lightning_perf.report.document import PerfReport
from lightning_perf.report.labels import count_of
from lightning_perf.terminal_text import plain, prose
from lightning_perf.units import format_duration, format_share

__all__ = ["print_short_report", "render_short"]

MAX_FINDINGS = 4
MAX_NOTES = 2
MAX_MISTAKES = 2


def print_short_report(
    report: PerfReport, folder: Path | None, *, file: IO[str] | None = None, width: int | None = None
) -> None:
    """Print the short report.

    Args:
        report: The report.
        folder: The folder of the fit, for the command that prints all of it; None if nothing was saved.
        file: Where to; standard output by default.
        width: Columns; those of the terminal by default.
    """
    from lightning_perf.report.console.render import ReportConsole

    console = ReportConsole(file=file, width=width, highlight=False, emoji=False, markup=False)
    for part in render_short(report, folder):
        # The terminal may wrap a command on its own line, but we may not: it is there to be copied.
        console.print(part, soft_wrap=isinstance(part, Text) and part.no_wrap)


def render_short(report: PerfReport, folder: Path | None) -> Iterator[RenderableType]:
    """The parts of the short report, in order.

    Args:
        report: The report.
        folder: The folder of the fit; None if nothing was saved.

    Yields:
        Renderables for rich.
    """
    verdict = report.verdict
    yield hanging("Where", prose(verdict.where), style="bold")
    if report.findings:
        for number, finding in enumerate(report.findings[:MAX_FINDINGS], start=1):
            yield hanging(f"{number:>4}.", _finding_line(finding), gap=2)
        if len(report.findings) > MAX_FINDINGS:
            yield Text(f"      and {count_of(len(report.findings) - MAX_FINDINGS, 'more finding')}", style="dim")
        yield hanging("Next ", prose(report.findings[0].action, "green"), style="bold")
    else:
        yield hanging("Why  ", prose(verdict.why), style="bold")
        yield hanging("Next ", prose(verdict.next, "green"), style="bold")
    bad_run = report.precision.bad_run if report.precision is not None else None
    if bad_run is not None:
        yield hanging("Error", prose(bad_run.title), style="red")
        yield hanging("     ", prose(f"Fix: {bad_run.action}", "green"))
    mistakes = report.precision.mistakes if report.precision is not None else ()
    for mistake in mistakes[:MAX_MISTAKES]:
        yield hanging("Error" if mistake.severity == "high" else "Note ", mistake_line(mistake), style="yellow")
        yield hanging("     ", prose(f"Fix: {mistake.action}", "green"))
    if len(mistakes) > MAX_MISTAKES:
        more = count_of(len(mistakes) - MAX_MISTAKES, "more mistake")
        yield Text(f"      {more} in the full report", style="dim")
    if report.fit_findings:
        if report.fit_time is not None:
            yield hanging("Fit  ", prose(fit_sentence(report.fit_time)), style="bold")
        for number, finding in enumerate(report.fit_findings[:MAX_FINDINGS], start=len(report.findings) + 1):
            yield hanging(f"{number:>4}.", _finding_line(finding), gap=2)
    for note in report.notes[:MAX_NOTES]:
        yield hanging("Note ", prose(note), style="yellow")
    if len(report.notes) > MAX_NOTES:
        yield Text(f"       {count_of(len(report.notes) - MAX_NOTES, 'more note')} in the full report", style="dim")
    if report.forecast is not None:
        yield hanging("FP8  ", prose(" ".join(report.forecast.advice[:2])), style="bold")
    if folder is not None:
        command = Text.assemble("Full report: ", plain(f"lightning-perf analyze {shlex.quote(str(folder))}", "cyan"))
        command.no_wrap = True
        yield command


def _finding_line(finding: Finding) -> Text:
    text = Text.assemble(prose(finding.title), "  [", rule_link(finding), "]")
    saving = _saving(finding)
    return Text.assemble(text, (f" ({saving})", "dim")) if saving else text


def _saving(finding: Finding) -> str:
    """The estimated saving in a few characters, e.g. ``saves 3.1 ms to 5.2 ms per step, 20 % to 34 %``."""
    low, high = finding.saving_low_ms, finding.saving_high_ms
    if low is None or high is None:
        return ""
    low_text, high_text = format_duration(low * 1e6), format_duration(high * 1e6)
    times = high_text if low_text == high_text else f"{low_text} to {high_text}" if low > 0 else f"up to {high_text}"
    of_what = "of the fit" if finding.per == "fit" else "per step"
    if not finding.step_ms:
        return f"saves {times} {of_what}"
    low_share, high_share = format_share(low / finding.step_ms), format_share(high / finding.step_ms)
    shares = high_share if low_share == high_share or not low > 0 else f"{low_share} to {high_share}"
    return f"saves {times} {of_what}, {shares}{', probed' if finding.basis == 'probed' else ''}"
