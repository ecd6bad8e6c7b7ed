"""A finding: one cause of lost time, with its evidence, its fix and an estimate of the saving."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from lightning_perf.findings.pages import rule_page_url

__all__ = ["BASIS_TEXT", "Basis", "Finding", "Severity", "finding", "middle_of", "severity_of"]

Severity = Literal["high", "moderate", "low"]

Basis = Literal["recording", "general", "probed"]
"""The basis of an estimate: times of the recording, factors that hold for all networks, or a probe of this network."""

BASIS_TEXT: dict[Basis, str] = {
    "recording": "",
    "general": ", general range, not probed",
    "probed": ", probed on this device",
}
"""The basis in words, for the end of an estimate."""

MIN_SHARE = 0.03
MODERATE_SHARE = 0.05
HIGH_SHARE = 0.15
"""Shares of the step time. A cause is reported if it could save at least the first one. Its severity is moderate or
high if the middle of its estimate reaches the second or the third.

XProf uses similar thresholds: 5 and 20 % for input, 3 and 15 % for launches and communication.
"""


@dataclass(frozen=True)
class Finding:
    """A cause of lost time.

    Attributes:
        kind: The ID of the rule that found it: ``input-bound``, ``launch-bound``, …
        severity: ``high``, ``moderate`` or ``low``, by the middle of the estimated saving as a share of the step.
        title: The problem in one clause, with its main number.
        evidence: Figures from this recording that show the problem, one sentence each.
        action: The fix, with the line of code to change if there is one.
        saving_low_ms: Least estimated saving in milliseconds per step, or of the fit; ``None`` if no model gives one.
        saving_high_ms: Most estimated saving, in the same unit.
        model: How the saving was estimated: the share that can shrink, and its factor.
        rank: The rank that it was found on; ``None`` if the recording does not say.
        step_ms: Mean step time of that rank, or the time of the fit, for shares of the saving; ``None`` if no saving is
            estimated.
        basis: ``probed`` for a saving measured on this device with the recorded operators, ``general`` for a range for
            all networks that a probe would narrow, ``recording`` for other estimates.
        page: Address of the page that explains the rule, always the one that belongs to ``kind``.
        per: ``step`` or ``fit``: whether the saving is per step or of the whole fit.
    """

    kind: str
    severity: Severity
    title: str
    evidence: tuple[str, ...]
    action: str
    saving_low_ms: float | None
    saving_high_ms: float | None
    model: str
    rank: int | None = None
    step_ms: float | None = None
    basis: Basis = "recording"
    page: str = ""
    per: Literal["step", "fit"] = "step"

    def __post_init__(self) -> None:
        """Derive the page from the rule, also when a document is read: an address in it is not trusted."""
        object.__setattr__(self, "page", rule_page_url(self.kind))


def middle_of(low: float, high: float) -> float:
    """Return the middle of an estimate, which decides its severity and its place in the list."""
    return (low + high) / 2


def severity_of(low: float, high: float, step: float) -> Severity:
    """Return the severity of a cause, by the middle of its estimated saving.

    Args:
        low: Least estimated saving per step.
        high: Most estimated saving per step, in the same unit.
        step: Step time, in the same unit.

    Example:
        >>> severity_of(10, 30, 100), severity_of(0, 20, 100), severity_of(0, 6, 100)
        ('high', 'moderate', 'low')
    """
    share = middle_of(low, high) / step if step > 0 else 0.0
    return "high" if share >= HIGH_SHARE else "moderate" if share >= MODERATE_SHARE else "low"


def finding(
    kind: str,
    title: str,
    evidence: Iterable[str],
    action: str,
    *,
    saving_ns: tuple[float, float],
    step_ns: float,
    model: str,
    rank: int | None,
    basis: Basis = "recording",
) -> Finding:
    """Make a finding with an estimated saving and the severity that follows from it.

    Args:
        kind: The ID of the rule.
        title: The problem in one clause.
        evidence: Figures that show it.
        action: The fix.
        saving_ns: Least and most estimated saving in nanoseconds per step. A saving never exceeds the step.
        step_ns: Mean step time of the rank.
        model: How the saving was estimated.
        rank: The rank that it was found on.
        basis: The basis of the estimate.
    """
    low, high = (min(saving, step_ns) if step_ns > 0 else saving for saving in sorted(saving_ns))
    return Finding(
        kind=kind,
        severity=severity_of(low, high, step_ns),
        title=title,
        evidence=tuple(evidence),
        action=action,
        saving_low_ms=low / 1e6,
        saving_high_ms=high / 1e6,
        model=model,
        rank=rank,
        step_ms=step_ns / 1e6,
        basis=basis,
    )
