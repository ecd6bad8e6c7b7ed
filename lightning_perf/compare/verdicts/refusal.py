"""A comparison that was refused: the error, and the document with the rows that forbid it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.records.fairness import Difference

__all__ = ["Unfair", "UnfairError", "UnfairRow", "describe_refusal"]


class UnfairError(CompareError):
    """The arms differ in more than what is under test.

    Args:
        baseline: Name of the baseline.
        differences: For each candidate the differences that are not allowed.
    """

    def __init__(self, baseline: str, differences: Mapping[str, tuple[Difference, ...]]) -> None:
        facts = sorted({difference.fact for rows in differences.values() for difference in rows})
        super().__init__(f"The runs differ in more than what is under test: {', '.join(facts)}.")
        self.baseline = baseline
        self.differences = differences


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
