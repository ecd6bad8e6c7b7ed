"""The short report that a fit ends with: the verdict, the findings' titles and savings, and the way to the rest."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.findings.finding import Finding
from lightning_perf.report.labels import count_of
from lightning_perf.report.sections.fit_time import fit_sentence
from lightning_perf.report.sections.fp32_comparison import bad_run_summary
from lightning_perf.report.sections.precision import mistake_text
from lightning_perf.report.sections.rank import categories_table
from lightning_perf.report.sections.report import rule_link
from lightning_perf.report.verdict import fix_text, rests_on_first, saving_range
from lightning_perf.run_files.numerics.precision import RunPrecision
from lightning_perf.show.blocks import Block, Line, Span
from lightning_perf.units import format_share

if TYPE_CHECKING:
    from lightning_perf.report.document import PerfReport

MAX_FINDINGS = 4
MAX_NOTES = 2
MAX_MISTAKES = 2


def short_blocks(report: PerfReport, folder: Path | None) -> Iterator[Block]:
    """Yield the short report of a fit, with the command that prints all of it if its folder was saved."""
    verdict, findings = report.verdict, report.findings
    yield from bad_run_summary(report.precision)
    yield Line(verdict.where, label="Where", label_style="strong")
    first = rests_on_first(verdict, findings)
    if not first:
        yield Line(verdict.why, label="Why  ", label_style="strong")
        yield Line(verdict.next, "good", label="Next ", label_style="strong")
    yield from _findings(findings, start=1)
    if len(findings) > MAX_FINDINGS:
        yield Line(f"      and {count_of(len(findings) - MAX_FINDINGS, 'more finding')}", "quiet")
    if first:
        yield Line(fix_text(findings[0]), "good", label="Next ", label_style="strong")
    if report.precision is not None:
        yield from _mistakes(report.precision)
    if report.fit_findings:
        if report.fit_time is not None:
            yield Line(fit_sentence(report.fit_time), label="Fit  ", label_style="strong")
        yield from _findings(report.fit_findings, start=len(findings) + 1)
    yield from (Line(text, label="Note ", label_style="warning") for text in report.notes[:MAX_NOTES])
    if len(report.notes) > MAX_NOTES:
        yield Line(f"       {count_of(len(report.notes) - MAX_NOTES, 'more note')} in the full report", "quiet")
    if report.forecast is not None:
        yield Line(" ".join(report.forecast.advice[:2]), label="FP8  ", label_style="strong")
    if folder is not None:
        command = Span(f"lightning-perf analyze {shlex.quote(str(folder))}", "command")
        yield Line(("Full report: ", command), copied=True)


def notebook_blocks(report: PerfReport) -> Iterator[Block]:
    """Yield the short report, the categories of the step, and how to see the rest."""
    yield from short_blocks(report, None)
    if report.lead is not None:
        yield categories_table(report.ranks[report.lead].breakdown)
    yield Line(
        ("All figures: ", Span("report.print()", "command"), ", ", Span('report.write_html("report.html")', "command"))
    )


def _findings(findings: tuple[Finding, ...], start: int) -> Iterator[Block]:
    for number, finding in enumerate(findings[:MAX_FINDINGS], start=start):
        saving = _saving(finding)
        details = (Span(f" ({saving})", "quiet"),) if saving else ()
        yield Line((finding.title, "  [", rule_link(finding), "]", *details), label=f"{number:>4}.")


def _mistakes(precision: RunPrecision) -> Iterator[Block]:
    for mistake in precision.mistakes[:MAX_MISTAKES]:
        kind = "Error" if mistake.severity == "high" else "Note "
        yield Line(mistake_text(mistake), label=kind, label_style="warning")
        yield Line(f"Fix: {mistake.action}", "good", label="     ")
    more = len(precision.mistakes) - MAX_MISTAKES
    if more > 0:
        yield Line(f"      {count_of(more, 'more mistake')} in the full report", "quiet")


def _saving(finding: Finding) -> str:
    """The estimated saving in a few characters, e.g. ``saves 3.1 ms to 5.2 ms per step, 20 % to 34 %``."""
    low, high = finding.saving_low_ms, finding.saving_high_ms
    if low is None or high is None:
        return ""
    saves = f"saves {saving_range(finding, None)}"
    if not finding.step_ms:
        return saves
    low_share, high_share = format_share(low / finding.step_ms), format_share(high / finding.step_ms)
    shares = high_share if low_share == high_share or not low > 0 else f"{low_share} to {high_share}"
    return f"{saves}, {shares}{', probed' if finding.basis == 'probed' else ''}"
