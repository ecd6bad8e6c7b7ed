"""The layout that the console's sections share: headings, tables, bars and the header."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding
from lightning_perf.report.document import PerfReport, Verdict
from lightning_perf.report.labels import CATEGORY_LABELS, count_of, processor_text
from lightning_perf.terminal_text import Label, plain, prose
from lightning_perf.units import NOT_AVAILABLE, format_duration, format_share

__all__ = ["device_line", "hanging", "label", "ranks_table", "rule_link", "table", "verdict_block"]

RANK_COLUMNS = ("device_compute", "communication", "memcpy", "input", "host_compute")
MAX_RANKS = 16


def verdict_block(verdict: Verdict) -> RenderableType:
    """Return the verdict: each of its parts behind its label."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    grid.add_row("Where", prose(verdict.where))
    grid.add_row("Why", prose(verdict.why))
    grid.add_row("Next", prose(verdict.next, "green"))
    return Group(grid, Text())


def hanging(label: str, text: Text, *, style: str = "", gap: int = 2) -> RenderableType:
    """Return a label and its text. Further lines of the text begin below its first line, not below the label."""
    grid = Table.grid(padding=(0, gap))
    grid.add_column(style=style, no_wrap=True)
    grid.add_column()
    grid.add_row(label, text)
    return grid


def rule_link(finding: Finding) -> Text:
    """Return the ID of a finding's rule as a link to its page. Terminals without links show the ID alone."""
    text = plain(finding.kind)
    text.stylize(Style(link=finding.page))
    return text


def device_line(report: PerfReport, lead: RankAnalysis) -> str:
    """Describe the recording and its device in one line."""
    metadata = lead.metadata
    used = sorted({device.name for device in metadata.devices if device.name})
    parts = [", ".join(used)] if used and lead.breakdown.has_device else []
    if not lead.breakdown.has_device and metadata.processor is not None:
        parts.append(processor_text(metadata.processor))
    if metadata.world_size and metadata.world_size > 1:
        parts.append(f"{count_of(len(report.ranks), 'rank')} of {metadata.world_size}")
    if lead.breakdown.marked:
        parts.append(count_of(len(lead.breakdown.steps), "recorded step"))
    parts.append(f"{format_duration(lead.recording_ns)} recorded")
    return " · ".join(parts)


def ranks_table(report: PerfReport) -> RenderableType:
    """Return a table with one row per rank: its step time and the shares of the main categories."""
    names = [n for n in RANK_COLUMNS if any(r.breakdown.category(n).mean_ns for r in report.ranks)]
    grid = table("rank", "step time", *(CATEGORY_LABELS[name].replace(" ", "\n", 1) for name in names))
    for analysis in _shown(report):
        breakdown = analysis.breakdown
        grid.add_row(
            NOT_AVAILABLE if analysis.rank is None else str(analysis.rank),
            format_duration(breakdown.wall.mean_ns),
            *(format_share(breakdown.category(name).share) for name in names),
        )
    lines = []
    if len(report.ranks) > MAX_RANKS:
        lines.append(Text(f"… and {len(report.ranks) - MAX_RANKS} more", style="dim"))
    lines += [Text(sentence) for sentence in report.who_waits]
    return Group(grid, *lines)


def _shown(report: PerfReport) -> list[RankAnalysis]:
    """Return the first ranks, and every rank that the report mentions."""
    told = {finding.rank for finding in report.findings}
    if report.distributed is not None and report.distributed.awaited is not None:
        told.add(report.distributed.awaited.rank)
    lead = None if report.lead is None else report.ranks[report.lead]
    ranks = sorted(report.ranks, key=lambda each: (each is not lead, each.rank is None or each.rank not in told))
    first = {id(each) for each in ranks[:MAX_RANKS]}
    return [each for each in report.ranks if id(each) in first]


def table(first: str, *others: str) -> Table:
    """Return a table with text in the first column and figures in the others. On a narrow page, the text is shortened.

    Make its cells with `label`.
    """
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    grid.add_column(first, min_width=12)
    for name in others:
        grid.add_column(name, justify="right", no_wrap=True)
    return grid


def label(text: str, style: str = "", detail: str = "") -> Label:
    """Return a name for the first column of a `table`: escaped, and shortened rather than wrapped.

    Args:
        text: The name.
        style: Its style.
        detail: Text that follows it, dimmed.
    """
    name = plain(text, style)
    return Label(name.append_text(plain(detail, "dim")) if detail else name)
