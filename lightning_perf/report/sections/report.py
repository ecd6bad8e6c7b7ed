"""The blocks of a whole report, with folded figures, and the short report that a fit ends with."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.trust import Trust
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.whole_run import HeldBack
from lightning_perf.report.captured import AS_USUAL, Captured
from lightning_perf.report.labels import CATEGORY_LABELS, processor_text, settings_text
from lightning_perf.report.sections.device import gpu_health_section
from lightning_perf.report.sections.diff import MOST_ROWS, changes_table
from lightning_perf.report.sections.fit_time import (
    compilation_section,
    fit_sentence,
    fit_time_section,
    mostly_steps,
    step_times_section,
)
from lightning_perf.report.sections.precision import (
    bad_run_summary,
    forecast_section,
    fp8_section,
    fp32_section,
    mistake_text,
    mistakes_section,
    precision_section,
)
from lightning_perf.report.sections.rank import categories_table, rank_sections
from lightning_perf.report.sections.ranks import over_fit_section, ranks_section
from lightning_perf.report.sections.work import other_notes, out_of_memory_blocks, out_of_memory_summary
from lightning_perf.report.sentences import trust_line
from lightning_perf.report.verdict import fix_text, rests_on_first, saving_range, saving_text
from lightning_perf.run_files.numerics.precision import RunPrecision
from lightning_perf.run_files.probe import Probe, ProbedCall, ProbedChange
from lightning_perf.show.blocks import (
    Block,
    Cell,
    Details,
    Heading,
    Line,
    Span,
    Style,
    Table,
    TableRow,
    listing,
    note,
    rest,
    table,
)
from lightning_perf.units import counted, format_duration, format_share

if TYPE_CHECKING:
    from lightning_perf.report.document import PerfReport


STYLES: dict[str, Style] = {"high": "bad", "moderate": "warning", "low": "command"}

MAX_SOURCES = 4

NAMED_CHANGES = 3
"""Changes of a capture by category, kernel and operator on the console."""


def report_blocks(report: PerfReport, top: int) -> Iterator[Block]:
    """Yield the blocks of a report, its tables cut to their first rows."""
    verdict = report.verdict
    lead = None if report.lead is None else report.ranks[report.lead]
    yield from bad_run_summary(report.precision)
    yield from out_of_memory_summary(report.out_of_memory)
    yield Line(verdict.where, label="Where", label_style="strong")
    yield Line(verdict.why, label="Why  ", label_style="strong")
    yield Line(verdict.next, "good", label="Next ", label_style="strong")
    yield Line()
    if lead is not None:
        yield Line(device_line(report, lead), "quiet")
    yield from map(note, other_notes(report.notes, report.out_of_memory))
    if report.out_of_memory:
        yield from out_of_memory_blocks(report.out_of_memory)
    if report.trust is not None:
        yield trust_block(report.trust)
    if report.findings:
        yield Heading("Findings")
        yield from findings_blocks(report.findings, lead)
    if report.fit_findings:
        yield Heading("Findings of the whole fit")
        yield from findings_blocks(report.fit_findings, lead, start=len(report.findings) + 1)
    if report.held_back:
        yield from held_back_blocks(report.held_back)
    if _diagnosed(report):
        yield from fp32_section(report.precision, report.shadow, top)
    if report.precision is not None and report.precision.mistakes:
        yield from mistakes_section(report.precision.mistakes)
    yield Details("Figures", tuple(_figures(report, lead, top)))


def _figures(report: PerfReport, lead: RankAnalysis | None, top: int) -> Iterator[Block]:
    if len(report.ranks) > 1:
        yield from ranks_section(report)
    if report.over_fit is not None:
        yield from over_fit_section(report.over_fit, report.gpu_health)
    if lead is not None:
        yield from rank_sections(lead, top)
    if report.gpu_health:
        yield from gpu_health_section(report.gpu_health)
    for rank in report.ranks:
        if rank.probe is not None:
            yield Heading("Probe")
            yield from probe_blocks(rank.probe, top)
    if report.fit_time is not None:
        yield from of_rank(report, report.fit_time.rank, fit_time_section(report.fit_time, top))
    if report.compilation is not None:
        yield from compilation_section(report.compilation, top)
    if report.step_times is not None:
        yield from of_rank(report, report.step_times.rank, step_times_section(report.step_times))
    if report.captures:
        yield from _captures(report.captures)
    if report.precision is not None:
        yield from precision_section(report.precision, top)
    if not _diagnosed(report):
        yield from fp32_section(report.precision, report.shadow, top)
    if report.fp8 is not None:
        yield from fp8_section(report.fp8, top)
    if report.forecast is not None:
        yield from forecast_section(report.forecast, top)
    if report.sources:
        yield from _sources(report.sources)


def of_rank(report: PerfReport, rank: int | None, blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield a section, with the rank in its heading if the run has several."""
    several = any((each.metadata.world_size or 1) > 1 for each in report.ranks)
    for block in blocks:
        named = several and rank is not None and isinstance(block, Heading)
        yield replace(block, aside=f"rank {rank}") if named else block


def _diagnosed(report: PerfReport) -> bool:
    """Return whether the run went wrong in 16 bits: all that is known of it then comes before the figures."""
    return report.precision is not None and report.precision.bad_run is not None


def findings_blocks(findings: Sequence[Finding], lead: RankAnalysis | None, start: int = 1) -> Iterator[Block]:
    """Yield each finding with its evidence, its fix and its saving, and how to read more about them."""
    several = lead is not None and (lead.metadata.world_size or 1) > 1
    for number, finding in enumerate(findings, start=start):
        whose = f", rank {finding.rank}" if several and finding.rank is not None else ""
        severity = f" · {finding.severity}{whose}]".replace(" ", "\u00a0")
        title = (Span(finding.title, STYLES[finding.severity]), "  [", rule_link(finding), severity)
        yield Line(title, label=f"{number}.", gap=1)
        saving = saving_text(finding, lead)
        lines: list[str | Line] = [Line(finding.warning, "warning")] if finding.warning else []
        lines += [*finding.evidence, Line((Span("Fix: ", "good"), finding.action))]
        lines += [Line(f"{saving} {finding.model}", "quiet")] if saving else []
        yield from listing(lines, indent=3)
    yield Line(("About a finding: ", Span(f"lightning-perf explain {findings[0].kind}", "command")))


def rule_link(finding: Finding) -> Span:
    """Return the ID of a finding's rule as a link to its page."""
    return Span(finding.kind, link=finding.page)


def device_line(report: PerfReport, lead: RankAnalysis) -> str:
    """Say where a rank was recorded, with which settings, and how much of it."""
    metadata = lead.metadata
    used = sorted({device.name for device in metadata.devices if device.name})
    parts = [", ".join(used)] if used and lead.breakdown.has_device else []
    if not lead.breakdown.has_device and metadata.processor is not None:
        parts.append(processor_text(metadata.processor))
    parts += settings_text(metadata.settings)
    if metadata.world_size and metadata.world_size > 1:
        number, world = len(report.ranks), metadata.world_size
        more = number > world  # several recordings of one rank, or of another run
        parts.append(f"{number:,} recordings of {world:,} ranks" if more else f"{counted(number, 'rank')} of {world:,}")
    if lead.breakdown.marked:
        parts.append(counted(len(lead.breakdown.steps), "recorded step"))
    parts.append(f"{format_duration(lead.recording_ns)} recorded")
    return " · ".join(parts)


def trust_block(trust: Trust) -> Line:
    """Say how far the figures can be trusted, in yellow if only partly."""
    doubtful = not trust.sound or any(window.returned is False for window in trust.windows)
    return Line((Span("Trust ", "warning" if doubtful else "good"), trust_line(trust)))


def held_back_blocks(held_back: Sequence[HeldBack]) -> Iterator[Block]:
    """Yield each finding that is held back, with the reason. Several with one reason share it."""
    yield Heading("Held back", definition="held-back")
    for reason, same in groupby(held_back, lambda each: each.reason):
        findings = [each.finding for each in same]
        shared = len(findings) > 1
        own = "" if shared else f"  {reason}"
        yield from listing(
            (Line((finding.title, "  [", rule_link(finding), "]", Span(own, "quiet"))) for finding in findings),
            marker="-",
        )
        if shared:
            yield Line(f"Reason for these {len(findings)}: {reason}", "quiet")


def _captures(captures: Sequence[Captured]) -> Iterator[Block]:
    """Describe each capture: the moment, how slow the steps were, and the differences."""
    yield Heading("Captures")
    for capture in captures:
        yield Line((Span(capture.folder, "command"), f"  {capture.trigger.value}"))
        yield from listing(capture.evidence, indent=2)
        yield from capture_changes(capture, NAMED_CHANGES)


def capture_changes(capture: Captured, top: int = MOST_ROWS) -> Iterator[Table]:
    """Yield the changes from the scheduled window to a capture by category, kernel and operator, the largest first."""
    changed = capture.diff
    if changed is None or (changed.step.ratio or 0.0) < AS_USUAL:
        return
    for changes, noun, labels, title in (
        (changed.categories, "category", CATEGORY_LABELS, "By category"),
        (changed.kernels, "kernel", None, "Kernels"),
        (changed.operators_host, "operator", None, "Operators on the host"),
    ):
        if changes is not None:
            yield changes_table(changes, noun, labels, top, title)


def _sources(sources: Sequence[str]) -> Iterator[Block]:
    yield Heading("Traces")
    yield from (Line(source, copied=True) for source in sources[:MAX_SOURCES])
    yield from rest(len(sources) - MAX_SOURCES, "", hint="")
    command = f"lightning-perf view {shlex.quote(sources[0])}"
    yield Line(("Timeline: ", Span(command, "command")), copied=True)


CHANGE_NAMES = {
    "bf16": "bf16-mixed",
    "channels-last": "channels last",
    "fused-optimizer": "fused optimizer",
    "batch": "twice the batch",
}


def probe_blocks(probe: Probe, top: int) -> Iterator[Block]:
    """Yield the blocks of a probe, with the longest operators."""
    covered = probe.covered_ns / probe.operator_ns if probe.operator_ns else 0.0
    yield Line(
        f"On {probe.device}: the measured operators take {format_share(covered)} of the operators' time, in a step of "
        f"{format_duration(probe.step_ns)}."
    )
    if not probe.same_device:
        yield Line("The recording was made on another device. The figures are the answer for this machine.", "warning")
    changes = sorted(probe.changes, key=lambda change: -change.saving_ns)
    rows = (_change_row(change, probe.step_ns or 1.0) for change in changes)
    yield table(("change", "saves per step", "share", "measured"), rows, kinds="name figure figure share")
    if not changes:
        yield Line("No other setting could be measured.", "warning")
    if probe.launch_ns is not None:
        yield Line(f"Launching a kernel takes {format_duration(probe.launch_ns)} on this machine.")
    if probe.compile_s is not None:
        yield Line(f"Compiling the operators took {format_duration(1e9 * probe.compile_s)}.")
    if probe.calls:
        yield Line()
        yield _calls_table(probe.calls[:top], [change.name for change in probe.changes])
    for name, reason in list(probe.skipped.items())[:3]:
        yield Line(f"Not measured: {name}: {reason}", "quiet")


def _change_row(change: ProbedChange, step_ns: float) -> TableRow:
    low, high = sorted((change.low_ns, change.high_ns))
    return (
        change.setting,
        Cell(f"{format_duration(low)} to {format_duration(high)}", change.saving_ns),
        Cell(f"{format_share(low / step_ns)} to {format_share(high / step_ns)}", change.saving_ns / step_ns),
        change.measured_ns / step_ns,
    )


def _calls_table(calls: Sequence[ProbedCall], changes: Sequence[str]) -> Table:
    names = [name for name in changes if any(name in call.changed_ns for call in calls)]
    return table(
        ("operator", "calls", "usual per step", "one call now", *(CHANGE_NAMES.get(name, name) for name in names)),
        (
            (
                call.name,
                Cell(f"{call.calls:g}", call.calls),
                call.recorded_ns,
                call.current_ns,
                *(call.changed_ns.get(n) for n in names),
            )
            for call in calls
        ),
        kinds="name figure duration duration" + " duration" * len(names),
    )


MAX_FINDINGS = 4
MAX_NOTES = 2
MAX_MISTAKES = 2


def short_blocks(report: PerfReport, folder: Path | None) -> Iterator[Block]:
    """Yield the short report of a fit, with the command that prints all of it if its folder was saved."""
    verdict, findings = report.verdict, report.findings
    yield from bad_run_summary(report.precision)
    yield from out_of_memory_summary(report.out_of_memory)
    yield Line(verdict.where, label="Where", label_style="strong")
    first = rests_on_first(verdict, findings)
    if not first:
        yield Line(verdict.why, label="Why  ", label_style="strong")
        yield Line(verdict.next, "good", label="Next ", label_style="strong")
    yield from _findings(findings, start=1)
    if len(findings) > MAX_FINDINGS:
        yield Line(f"      and {counted(len(findings) - MAX_FINDINGS, 'more finding')}", "quiet")
    if first:
        yield Line(fix_text(findings[0]), "good", label="Next ", label_style="strong")
    if report.precision is not None:
        yield from _mistakes(report.precision)
    if report.fit_time is not None and (report.fit_findings or not mostly_steps(report.fit_time)):
        yield Line(fit_sentence(report.fit_time), label="Fit  ", label_style="strong")
    yield from _findings(report.fit_findings, start=len(findings) + 1)
    notes = other_notes(report.notes, report.out_of_memory)
    yield from (Line(text, label="Note ", label_style="warning") for text in notes[:MAX_NOTES])
    if len(notes) > MAX_NOTES:
        yield Line(f"       {counted(len(notes) - MAX_NOTES, 'more note')} in the full report", "quiet")
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
        yield Line(f"      {counted(more, 'more mistake')} in the full report", "quiet")


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
