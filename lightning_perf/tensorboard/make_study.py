"""The files of a study ─► its comparison, or why there cannot be one."""

from __future__ import annotations

from pathlib import Path

from lightning_perf.compare.folders import compare_runs
from lightning_perf.compare.verdicts.comparison import Comparison
from lightning_perf.compare.verdicts.refusal import Unfair, UnfairError

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
        return compare_runs(folder)
    except UnfairError as error:
        return error.refusal
