"""Folders of runs ─► `Comparison`, and the estimates that it measured."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from lightning_perf.compare.records.record import RunRecord, find_records
from lightning_perf.compare.study.definition import failed_blocks, read_study, study_arms, study_notes
from lightning_perf.compare.study_options import read_options
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.comparison import Candidate, Comparison, UnfairError
from lightning_perf.compare.verdicts.gates import Settings
from lightning_perf.errors import ReportError
from lightning_perf.estimates.followed import ReportedRun, check_ratio, find_followed, save_outcomes
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.estimates import EstimateOutcome
from lightning_perf.run_files.report import REPORT_NAME

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
    try:
        comparison = compare_arms(arms_of_study, settings, failed_blocks=failed_blocks(folder))
    except UnfairError as error:
        error.refusal = replace(error.refusal, notes=study_notes(folder))
        raise
    study = read_study(folder)
    return replace(
        comparison,
        arms=tuple(replace(arm, command=study.arm(arm.name).shown()) for arm in comparison.arms),
        notes=(*comparison.notes, *study_notes(folder)),
    )


def _records(runs: _Folder | Sequence[RunRecord]) -> Sequence[RunRecord]:
    return find_records(Path(runs)) if isinstance(runs, (str, os.PathLike)) else runs


def store_estimates(comparison: Comparison, arms: Path | Mapping[str, Sequence[RunRecord]]) -> None:
    """Store the estimates that a comparison measured, if there are any and their folder can be written to.

    That is the folder of the study, or else that of the candidate's last run.
    """
    study = arms if isinstance(arms, Path) else None
    runs = study_arms(arms) if isinstance(arms, Path) else arms
    for candidate in comparison.candidates:
        outcomes = checked_estimates(comparison, candidate, runs, in_study=study is not None)
        save_outcomes(study if study is not None else runs[candidate.arm][-1].path.parent, outcomes)


def checked_estimates(
    comparison: Comparison, candidate: Candidate, runs: Mapping[str, Sequence[RunRecord]], *, in_study: bool
) -> tuple[EstimateOutcome, ...]:
    """Return the estimates of the findings of the baseline that a candidate follows."""
    step_time = next((metric.estimate for metric in candidate.metrics if metric.metric == "step_time"), None)
    if step_time is None:
        return ()
    for run in runs[comparison.baseline]:
        path = run.path.parent / REPORT_NAME
        if not path.exists():
            continue
        followed = next(
            (found for other in runs[candidate.arm] if (found := find_followed(run.facts, other.facts)) is not None),
            None,
        )
        if followed is None:
            continue
        try:
            reported = ReportedRun(PerfReport.load(path), run.run_id, run.facts)
        except (OSError, ReportError):
            continue
        name = f"{comparison.baseline} → {candidate.arm}, {_digest(comparison, candidate)}"
        outcomes = check_ratio(reported, followed, step_time, "study" if in_study else "compare", name)
        if outcomes:
            return outcomes
    return ()


def _digest(comparison: Comparison, candidate: Candidate) -> str:
    """Hash the runs behind a measurement: with further runs it is another one."""
    names = sorted(
        run.run_id
        for run in comparison.runs
        if run.left_out is None and run.arm in (comparison.baseline, candidate.arm)
    )
    return hashlib.sha256(" ".join(names).encode()).hexdigest()[:12]
