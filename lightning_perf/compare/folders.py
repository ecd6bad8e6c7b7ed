"""Folders of runs ─► `Comparison`: the Python function behind ``lightning-perf compare``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from lightning_perf.compare.records.record import RunRecord, find_records
from lightning_perf.compare.study.definition import read_study
from lightning_perf.compare.study.results import failed_blocks, study_arms, study_notes
from lightning_perf.compare.study_options import read_options
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.comparison import Comparison
from lightning_perf.compare.verdicts.gates import Settings

_Folder: TypeAlias = "str | os.PathLike[str]"


def compare_runs(
    arms: _Folder | Mapping[str, _Folder | Sequence[RunRecord]], settings: Settings | None = None
) -> Comparison:
    """Compare the arms of a study, or the runs in two or more folders.

    Args:
        arms: The folder of a study, or a mapping from each arm's name to its runs: a folder or records. The first arm
            is the baseline.
        settings: Margins, gates and other choices that you made before you saw the runs. Settings that a study
            declared apply unless you give others. Its treatment and allowed facts are added to yours.

    Returns:
        The comparison. That of a study includes the study's notes.

    Raises:
        CompareError: There are fewer than two arms, a folder holds no runs, a run was given twice, or no run logged
            the metric that you named.
        InvalidRunsError: An arm has no finished and valid run.
        UnfairError: The fingerprints differ in more than the treatment and the allowed facts. Its ``refusal`` is the
            document that lists the differences.
        MissingExtraError: scipy is not installed.

    Example:
        >>> import lightning_perf
        >>> runs = {"fp32": "runs/fp32", "amp": "runs/amp"}
        >>> lightning_perf.compare_runs(runs).print()  # doctest: +SKIP
        >>> lightning_perf.compare_runs("studies/precision").to_markdown()  # doctest: +SKIP
    """
    if isinstance(arms, Mapping):
        return compare_arms({name: _records(runs) for name, runs in arms.items()}, settings)
    folder = Path(arms)
    arms_of_study = study_arms(folder)
    options = read_options(folder)
    settings = (settings or Settings()).over(options.settings if options is not None else Settings())
    comparison = compare_arms(arms_of_study, settings, failed_blocks=failed_blocks(folder))
    study = read_study(folder)
    return replace(
        comparison,
        arms=tuple(replace(arm, command=study.arm(arm.name).shown()) for arm in comparison.arms),
        notes=(*comparison.notes, *study_notes(folder)),
    )


def _records(runs: _Folder | Sequence[RunRecord]) -> Sequence[RunRecord]:
    return find_records(Path(runs)) if isinstance(runs, (str, os.PathLike)) else runs
