"""Stores the estimates that a comparison measured: its arms differ by a setting that a finding advised."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning_perf.compare.records.record import RunRecord
from lightning_perf.compare.study.results import study_arms
from lightning_perf.compare.verdicts.comparison import Candidate, Comparison
from lightning_perf.errors import ReportError
from lightning_perf.estimates.advice import find_followed
from lightning_perf.estimates.followed import ReportedRun, check_ratio, save_outcomes
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.estimates import EstimateOutcome
from lightning_perf.run_files.report import REPORT_NAME


def store_estimates(comparison: Comparison, arms: Path | Mapping[str, Sequence[RunRecord]]) -> None:
    """Store the estimates that a comparison measured, if there are any and their folder can be written to.

    Args:
        arms: The folder of a study, which also gets the file. Or the runs of each arm: the last run of the candidate
            then gets it.
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
