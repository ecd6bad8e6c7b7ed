"""Findings: cause, evidence, action and predicted saving."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding
from lightning_perf.report.console.safe import prose
from lightning_perf.report.console.summary import hanging
from lightning_perf.report.verdict import saving_text

__all__ = ["findings_section"]

STYLES = {"high": "bold red", "moderate": "yellow", "low": "cyan"}


def findings_section(findings: Sequence[Finding], lead: RankAnalysis | None) -> Iterator[RenderableType]:
    """One block a finding, the most to save first.

    Args:
        findings: The findings.
        lead: The rank whose step time the savings are a part of.
    """
    several = lead is not None and (lead.metadata.world_size or 1) > 1
    yield Text("\nFindings", style="bold")
    for number, finding in enumerate(findings, start=1):
        whose = f", rank {finding.rank}" if several and finding.rank is not None else ""
        title = prose(finding.title, STYLES[finding.severity])
        yield hanging(f"{number}.", Text.assemble(title, f"  [{finding.severity}{whose}]"), gap=1)
        lines = [*(prose(line) for line in finding.evidence), Text.assemble(("Do: ", "green"), prose(finding.action))]
        saving = saving_text(finding, lead)
        if saving:
            lines.append(prose(f"{saving} {finding.model}", "dim"))
        yield Padding(Text("\n").join(lines), (0, 0, 0, 3))
