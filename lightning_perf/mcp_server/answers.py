"""The answers of the MCP server's tools.

Each function calls the function behind the command of the same name. It takes the arguments of the tool and the folders
of the server. It returns the outcome, a message, the parts of the document that matter most, and the document.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lightning_perf.errors import LocatedError
from lightning_perf.mcp_server.confinement import resolve_path, resolve_source

if TYPE_CHECKING:
    from lightning_perf.compare.records.record import RunRecord
    from lightning_perf.compare.verdicts.comparison import Candidate
    from lightning_perf.findings.finding import Finding
    from lightning_perf.mcp_server.arguments import (
        Analyze,
        Compare,
        Data,
        Diff,
        Estimates,
        Explain,
        ExplainNan,
        History,
        ListRuns,
        Probe,
        Tune,
    )
    from lightning_perf.memory_snapshot.document import MemoryReport

__all__ = [
    "Result",
    "answer_analyze",
    "answer_compare",
    "answer_data",
    "answer_diff",
    "answer_estimates",
    "answer_explain",
    "answer_explain_nan",
    "answer_history",
    "answer_list_runs",
    "answer_probe",
    "answer_tune",
]

Result: TypeAlias = dict[str, Any]

_ENTRIES = 100_000
"""Most files that `list_runs` looks at."""


def answer_list_runs(arguments: ListRuns, folders: Sequence[Path]) -> Result:
    """List the folders with runs."""
    from lightning_perf.memory_snapshot.snapshot import is_snapshot
    from lightning_perf.run_files.captures import is_capture_folder
    from lightning_perf.run_files.journal import STUDY_NAME
    from lightning_perf.run_files.run_record import RECORD_NAME
    from lightning_perf.run_files.traces import PROFILER_SUFFIXES

    found: list[tuple[float, Result]] = []
    entries = 0
    for root in [resolve_path(arguments.path, folders)] if arguments.path else folders:
        for place, below, names in os.walk(root):
            below[:] = [name for name in below if not name.startswith(".") and not is_capture_folder(Path(place, name))]
            entries += len(names) + len(below)
            if entries > _ENTRIES:
                raise LocatedError(root, f"holds more than {_ENTRIES:,} files", "Give a folder below it")
            traces = sorted(name for name in names if name.endswith((*PROFILER_SUFFIXES, ".json.gz")))
            snapshots = sorted(name for name in names if name.endswith(".pickle") and is_snapshot(Path(place, name)))
            kinds = {
                "traces": traces,
                "snapshots": snapshots,
                "record": RECORD_NAME in names,
                "study": STUDY_NAME in names,
            }
            if any(kinds.values()):
                newest = max(_modified_s(Path(place, name)) for name in names)
                found.append((newest, {"path": place, "modified_unix_s": round(newest), **kinds}))
    runs = [run for _, run in sorted(found, key=lambda entry: -entry[0])]
    message = f"{len(runs)} folders with runs, the newest first." if runs else "No trace or run in these folders."
    return {"outcome": "listed", "message": message, "runs": runs, "folders": list(map(str, folders))}


def _modified_s(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def answer_analyze(arguments: Analyze, folders: Sequence[Path]) -> Result:
    """Analyze a recording or a memory snapshot."""
    from lightning_perf.memory_snapshot.snapshot import is_snapshot
    from lightning_perf.report.build import analyze
    from lightning_perf.report.labels import count_of

    path = resolve_path(arguments.path, folders)
    if is_snapshot(path):
        memory = _analyze_snapshot(path)
        message = "A memory snapshot has no findings. The text shows who held the memory at the peak."
        return {"outcome": "memory", "message": message, "text": memory.to_markdown(), "document": memory}
    report = analyze(path, by_shape=arguments.by_shape, executor=_analyze_here)
    found = (*report.findings, *report.fit_findings)
    held_back = [
        {"rule": held.finding.kind, "title": held.finding.title, "reason": held.reason} for held in report.held_back
    ]
    message = (
        f"{count_of(len(found), 'finding')}, the largest estimated saving first. "
        "Estimates are predictions: measure the change."
        if found
        else "No finding: no rule found a cause that could save 3 % of the step or more. That does not prove that the "
        "training cannot be faster."
    )
    return {
        "outcome": "findings" if found else "no_finding",
        "message": message,
        "verdict": report.verdict,
        "findings": list(map(_finding, found)),
        "held_back": held_back,
        "notes": report.notes,
        "document": report,
    }


def _analyze_snapshot(path: Path) -> MemoryReport:
    """Analyze a snapshot in this process, which is confined and has a memory limit."""
    from lightning_perf.memory_snapshot.build import build_report
    from lightning_perf.memory_snapshot.snapshot import read_snapshot

    return build_report(read_snapshot(path), path)


def _finding(found: Finding) -> Result:
    estimate: Result | None = None
    if found.saving_low_ms is not None and found.saving_high_ms is not None:
        step = found.step_ms or 0.0
        estimate = {
            "saving_ms": [round(found.saving_low_ms, 3), round(found.saving_high_ms, 3)],
            "per": found.per,
            "share": [round(saving / step, 3) for saving in (found.saving_low_ms, found.saving_high_ms)]
            if step
            else None,
            "basis": found.basis,
            "model": found.model,
        }
    return {
        "rule": found.kind,
        "severity": found.severity,
        "title": found.title,
        "evidence": found.evidence,
        "fix": found.action,
        "estimate": estimate,
        "rank": found.rank,
        "page": found.page,
    }


def _analyze_here(groups: Sequence[Sequence[Path]], *, by_shape: bool = False) -> Any:
    """Analyze ranks in this process. Another process would not be confined to the folders."""
    from lightning_perf.report.recordings import analyze_recording

    return [analyze_recording(group, by_shape=by_shape) for group in groups]


def answer_diff(arguments: Diff, folders: Sequence[Path]) -> Result:
    """Compare two recordings or two memory snapshots."""
    from lightning_perf.estimates.followed import diff_runs
    from lightning_perf.memory_snapshot.compared import compare_snapshots
    from lightning_perf.memory_snapshot.snapshot import is_snapshot

    paths = [resolve_path(text, folders) for text in (arguments.before, arguments.after)]
    if all(map(is_snapshot, paths)):
        changed = compare_snapshots(*map(_analyze_snapshot, paths))
        message = "Two memory snapshots. The text shows which lines hold more memory."
        return {"outcome": "memory", "message": message, "text": changed.to_markdown(), "document": changed}
    compared = diff_runs(paths[0], paths[1], store=False, executor=_analyze_here)
    tables = {
        name: [row for row in table.rows if row.verdict != "same"]
        for name in ("categories", "kernels", "operators_device", "operators_host")
        if (table := getattr(compared.diff, name)) is not None
    }
    mismatches = compared.comparability.mismatches
    if mismatches:
        message = "Not comparable: the recordings do not show the same training, so neither is faster."
    else:
        message = (
            f"{compared.headline.rstrip('.')}. One pair of recordings cannot separate a change from noise: use compare "
            "on repeated runs to decide."
        )
    return {
        "outcome": "not_comparable" if mismatches else compared.diff.step.verdict,
        "message": message,
        "mismatches": mismatches,
        "unchecked": compared.comparability.unchecked,
        "step": compared.diff.step,
        "changed": tables,
        "notes": compared.notes,
        "document": compared,
    }


def answer_compare(arguments: Compare, folders: Sequence[Path]) -> Result:
    """Compare repeated runs."""
    from lightning_perf.compare.judge import judge_arms
    from lightning_perf.compare.records.record import find_records
    from lightning_perf.compare.verdicts.gates import Settings, parse_gate
    from lightning_perf.compare.verdicts.refusal import InvalidRuns, Unfair
    from lightning_perf.lazy_imports import import_extra

    if bool(arguments.study) == bool(arguments.arms):
        raise LocatedError("arguments", "give either study or arms", 'E.g. {"arms": {"old": ["a"], "new": ["b"]}}')
    import_extra("scipy", "compare")
    settings = Settings(
        treatment=tuple(arguments.treatment),
        allow=tuple(arguments.allow),
        gates=tuple(map(parse_gate, arguments.gates)),
    )
    runs: Path | Mapping[str, Sequence[RunRecord]]
    if arguments.study:
        runs = resolve_path(arguments.study, folders)
    else:
        runs = {
            name: [record for text in paths for record in find_records(resolve_path(text, folders))]
            for name, paths in arguments.arms.items()
        }
    result = judge_arms(runs, settings, store=False)
    if isinstance(result, Unfair):
        message = f"Refused: {result.message} Repeat the runs with equal settings, or name the facts in allow."
        return {"outcome": "refused", "message": message, "differences": result.rows, "document": result}
    if isinstance(result, InvalidRuns):
        return {"outcome": "invalid_runs", "message": result.message, "document": result}
    kinds = {candidate.verdict.kind.value for candidate in result.candidates}
    return {
        "outcome": kinds.pop() if len(kinds) == 1 else "several",
        "message": " ".join(candidate.verdict.headline for candidate in result.candidates),
        "baseline": result.baseline,
        "candidates": list(map(_candidate, result.candidates)),
        "gates": result.gates,
        "notes": result.notes,
        "document": result,
    }


def _candidate(candidate: Candidate) -> Result:
    verdict = candidate.verdict
    changes = [
        {
            "metric": metric.metric,
            "change": metric.estimate.value,
            "interval": [metric.estimate.low, metric.estimate.high],
            "confidence": metric.estimate.confidence,
            "runs": metric.estimate.n,
        }
        for metric in candidate.metrics
    ]
    return {
        "arm": candidate.arm,
        "verdict": verdict.kind.value,
        "headline": verdict.headline,
        "details": verdict.details,
        "next": verdict.next,
        "metrics": changes,
    }


def answer_history(arguments: History, folders: Sequence[Path]) -> Result:
    """Find where a metric changed over commits."""
    from lightning_perf.history.read import read_history
    from lightning_perf.report.labels import count_of

    store = resolve_path(arguments.store, folders)
    history = read_history(store, metric=arguments.metric, since=arguments.since or None, repository=store)
    changes = sum(len(series.changes) for series in history.series)
    rows = sum(len(series.rows) for series in history.series)
    if changes:
        message = f"{count_of(changes, 'change')} of {history.metric} in {count_of(rows, 'row')}."
    else:
        message = (
            f"No certain change of {history.metric} in {count_of(rows, 'row')}. A small or a very recent change may be "
            "missing."
        )
    return {
        "outcome": "changed" if changes else "no_change",
        "message": message,
        "metric": history.metric,
        "series": [
            {
                "name": series.name,
                "rows": len(series.rows),
                "level": series.rows[-1].level,
                "noise": series.noise,
                "changes": series.changes,
                "note": series.note,
            }
            for series in history.series
        ],
        "baselines": history.baselines,
        "notes": history.notes,
        "document": history,
    }


def answer_explain(arguments: Explain, folders: Sequence[Path]) -> Result:  # noqa: ARG001
    """Return the page of a rule, or all rules."""
    from lightning_perf.findings.explanation import explain

    explanation = explain(arguments.rule or None)
    if arguments.rule:
        (rule,) = explanation.rules
        return {
            "outcome": "explained",
            "message": rule.symptom,
            "rule": rule.rule,
            "page": rule.page,
            "text": rule.text,
        }
    rules = {rule.rule: rule.symptom for rule in explanation.rules}
    return {"outcome": "listed", "message": f"{len(rules)} rules and mistakes, with their symptoms.", "rules": rules}


def answer_explain_nan(arguments: ExplainNan, folders: Sequence[Path]) -> Result:
    """Return the diagnosis of a NaN."""
    from lightning_perf.report.nan_diagnosis import diagnose_nan

    diagnosis = diagnose_nan(resolve_path(arguments.path, folders))
    found = diagnosis.bad_run
    if found is None:
        message = "No step of this run had a loss of NaN or infinity, as far as it was checked."
        return {"outcome": "no_diagnosis", "message": message, "document": diagnosis}
    message = f"The loss or the gradients went wrong in step {found.step}."
    return {"outcome": "diagnosed", "message": message, "diagnosis": found, "document": diagnosis}


def answer_estimates(arguments: Estimates, folders: Sequence[Path]) -> Result:
    """Count how often estimates came true."""
    from lightning_perf.estimates.calibration import calibrate
    from lightning_perf.lazy_imports import import_extra
    from lightning_perf.run_files.estimates import find_outcomes

    import_extra("scipy", "compare")
    places = [resolve_path(text, folders) for text in arguments.paths] or list(folders)
    outcomes = [outcome for place in places for outcome in find_outcomes(place)]
    if not outcomes:
        message = "No measured estimate in these folders: nothing is known about how often estimates came true here."
        return {"outcome": "no_estimates", "message": message}
    calibration = calibrate(outcomes, [str(place) for place in places])
    message = f"{len(calibration.estimates)} estimates with a measured gain."
    return {
        "outcome": "measured",
        "message": message,
        "totals": calibration.totals,
        "rules": calibration.rules,
        "document": calibration,
    }


def answer_probe(arguments: Probe, folders: Sequence[Path]) -> Result:
    """Run the recorded operators again."""
    from lightning_perf.lazy_imports import import_extra
    from lightning_perf.probe.folder import probe_path
    from lightning_perf.run_files.report import REPORT_NAME

    import_extra("torch", "train")
    path = resolve_path(arguments.path, folders)
    if path.name == REPORT_NAME:  # it names traces anywhere on the machine
        path = path.parent
    elif path.suffix == ".json" and not path.name.endswith(".trace.json"):
        raise LocatedError(path, "not the name of a trace", "Give a folder, or a file that ends with .trace.json")
    probe = probe_path(path, arguments.seconds)
    message = f"{len(probe.changes)} changes measured on {probe.device}. A range that includes 0 shows no gain."
    return {
        "outcome": "measured" if probe.changes else "nothing_measured",
        "message": message,
        "step_ns": probe.step_ns,
        "same_device": probe.same_device,
        "changes": probe.changes,
        "skipped": probe.skipped,
        "document": probe,
    }


def answer_tune(arguments: Tune, folders: Sequence[Path]) -> Result:
    """Try settings on a training."""
    from lightning_perf.lazy_imports import import_extra

    import_extra("torch", "train")
    import_extra("scipy", "compare")
    from lightning_perf.tune.tuner import PerfTuner

    source = resolve_source(arguments.training, folders)
    result = PerfTuner(minutes=arguments.minutes, levers=arguments.levers).tune(source, on_progress=lambda _: None)
    message = (
        f"Kept {', '.join(result.kept)}: change the lines in lines."
        if result.kept
        else "No lever was kept: none was certainly faster on this training and machine."
    )
    return {
        "outcome": "kept" if result.kept else "nothing_kept",
        "message": message,
        "lines": result.lines,
        "confirmed": result.confirmed,
        "combined": result.combined,
        "trials": result.trials,
        "notes": result.notes,
        "document": result,
    }


def answer_data(arguments: Data, folders: Sequence[Path]) -> Result:
    """Time the stages of loading."""
    from lightning_perf.loading.source import measure_source

    source = resolve_source(arguments.source, folders)
    report = measure_source(source, seconds=arguments.seconds, step_ms=arguments.step_ms)
    return {
        "outcome": "measured",
        "message": report.advice,
        "limit": report.limit,
        "stages": report.stages,
        "needed_workers": report.needed_workers,
        "document": report,
    }
