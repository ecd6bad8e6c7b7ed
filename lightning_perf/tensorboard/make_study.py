"""The files of a study ─► its comparison, or why there cannot be one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lightning_perf.compare.build import UnfairError, compare_arms
from lightning_perf.compare.comparison import Comparison
from lightning_perf.compare.fairness import Difference
from lightning_perf.compare.study import study_notes
from lightning_perf.compare.study_records import study_arms

__all__ = ["Unfair", "UnfairRow", "make_study"]


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


def make_study(folder: Path) -> Comparison | Unfair:
    """Compare the arms of a study, with the treatment that it declared.

    Args:
        folder: The study's folder.

    Raises:
        CompareError: It is none, or there are too few runs.
        MissingExtraError: A package that the statistics need is not installed.
    """
    try:
        comparison = compare_arms(study_arms(folder))
    except UnfairError as error:
        rows = (_row(arm, difference) for arm, rows in error.differences.items() for difference in rows)
        return Unfair(str(error), error.baseline, tuple(rows))
    return replace(comparison, notes=(*comparison.notes, *study_notes(folder)))


def _row(arm: str, difference: Difference) -> UnfairRow:
    return UnfairRow(arm, difference.fact, difference.baseline, difference.candidate)
