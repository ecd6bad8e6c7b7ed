"""`Unfair`: the document of a comparison that was refused, with the rows that forbid it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lightning_perf.compare.build import UnfairError

__all__ = ["Unfair", "UnfairRow", "describe_refusal"]


@dataclass(frozen=True)
class UnfairRow:
    """A fact that forbids the comparison.

    Attributes:
        arm: The candidate.
        fact: Its name.
        baseline: Its values over the baseline's runs.
        candidate: The same of the candidate.
    """

    arm: str
    fact: str
    baseline: tuple[str, ...]
    candidate: tuple[str, ...]


@dataclass(frozen=True)
class Unfair:
    """The arms differ in more than what is under test.

    Attributes:
        message: That in words.
        baseline: Name of the baseline.
        rows: The facts in which candidates differ and must not.
        state: Tells this document from a comparison.
    """

    message: str
    baseline: str
    rows: tuple[UnfairRow, ...]
    state: Literal["unfair"] = "unfair"


def describe_refusal(error: UnfairError) -> Unfair:
    """The document of a refused comparison.

    Args:
        error: The refusal.
    """
    rows = (
        UnfairRow(arm, difference.fact, difference.baseline, difference.candidate)
        for arm, differences in error.differences.items()
        for difference in differences
    )
    return Unfair(str(error), error.baseline, tuple(rows))
