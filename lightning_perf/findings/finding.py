"""What a rule finds: a cause of lost time, its evidence, what to do about it, and what that would save."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Severity", "finding", "severity_of"]

Severity = Literal["high", "moderate", "low"]

MIN_SHARE = 0.03
MODERATE_SHARE = 0.05
HIGH_SHARE = 0.15
"""Parts of the step time that a cause must be able to save to be reported at all, and to count as moderate and high.

XProf draws its lines alike: above 20 and 5 % for input, above 15 and 3 % for launches and communication.
"""


@dataclass(frozen=True)
class Finding:
    """A cause of lost time.

    Attributes:
        kind: Which rule found it: ``input-bound``, ``launch-bound``, …
        severity: ``high``, ``moderate`` or ``low``, by the share of the step that could be saved.
        title: The cause in one clause, with its main number.
        evidence: Figures from this recording that show it, a sentence each.
        action: What to change, down to the line of code where there is one.
        saving_low_ms: Least predicted saving, milliseconds a step; ``None`` where no model gives one.
        saving_high_ms: Most predicted saving, milliseconds a step.
        model: How the saving was predicted: which share can shrink, and by what factor.
        rank: The rank that it was found on, ``None`` in a recording that does not tell.
        step_ms: That rank's mean step time, which the saving is a part of; ``None`` where no saving is predicted.
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


def severity_of(saving_ms: float, step_ms: float) -> Severity:
    """How much a cause matters, by the most that removing it could save.

    Args:
        saving_ms: Most predicted saving a step.
        step_ms: Step time.

    Example:
        >>> severity_of(20, 100), severity_of(8, 100), severity_of(1, 100)
        ('high', 'moderate', 'low')
    """
    share = saving_ms / step_ms if step_ms > 0 else 0.0
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
) -> Finding:
    """Make a finding whose severity follows from its saving.

    Args:
        kind: Which rule found it.
        title: The cause in one clause.
        evidence: Figures that show it.
        action: What to change.
        saving_ns: Least and most predicted saving, nanoseconds a step; what exceeds the step is cut off.
        step_ns: Mean step time of the rank.
        model: How the saving was predicted.
        rank: The rank that it was found on.
    """
    low, high = (min(saving, step_ns) if step_ns > 0 else saving for saving in sorted(saving_ns))
    return Finding(
        kind=kind,
        severity=severity_of(high, step_ns),
        title=title,
        evidence=tuple(evidence),
        action=action,
        saving_low_ms=low / 1e6,
        saving_high_ms=high / 1e6,
        model=model,
        rank=rank,
        step_ms=step_ns / 1e6,
    )
