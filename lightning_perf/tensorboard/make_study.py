"""The files of a study ─► its comparison, or why there cannot be one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lightning_perf.compare.study.results import study_arms, study_notes
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.comparison import Comparison
from lightning_perf.compare.verdicts.refusal import Unfair, UnfairError, describe_refusal

__all__ = ["make_study"]


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
        return describe_refusal(error)
    return replace(comparison, notes=(*comparison.notes, *study_notes(folder)))
