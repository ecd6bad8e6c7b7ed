"""All rules, and the one function that applies them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.input_bound import input_bound

__all__ = ["RULES", "Rule", "find"]

Rule = Callable[[RankAnalysis], "Finding | None"]

RULES: tuple[Rule, ...] = (input_bound,)


def find(ranks: Iterable[RankAnalysis]) -> tuple[Finding, ...]:
    """Apply every rule to every rank.

    A truncated recording yields nothing: its device events are missing, and rules weigh shares of time. Of what several
    ranks share, the rank with the most to save speaks.

    Args:
        ranks: The ranks' analyses.

    Returns:
        Findings, the most to save first; those without a predicted saving last.
    """
    best: dict[str, Finding] = {}
    for analysis in ranks:
        if analysis.breakdown.truncated:
            continue
        for rule in RULES:
            finding = rule(analysis)
            if finding is not None and (finding.kind not in best or _weight(finding) > _weight(best[finding.kind])):
                best[finding.kind] = finding
    return tuple(sorted(best.values(), key=lambda finding: (*(-part for part in _weight(finding)), finding.kind)))


def _weight(finding: Finding) -> tuple[float, float]:
    if finding.saving_low_ms is None or finding.saving_high_ms is None:
        return (-1.0, -1.0)
    return ((finding.saving_low_ms + finding.saving_high_ms) / 2, finding.saving_high_ms)
