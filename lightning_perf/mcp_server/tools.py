"""The tools of the MCP server: their signatures give the arguments, and their docstrings say when to use them.

Each function calls the function behind the command of the same name. It gets the folders of the server and the
arguments of the tool. It returns the outcome, a message, the parts of the document that matter most, and the document.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

import msgspec
from msgspec import Meta, Struct

from lightning_perf.errors import LocatedError
from lightning_perf.lazy_imports import import_extra
from lightning_perf.mcp_server.confinement import resolve_path, resolve_source
from lightning_perf.units import counted

if TYPE_CHECKING:
    from lightning_perf.compare.records.record import RunRecord
    from lightning_perf.compare.verdicts.comparison import Candidate
    from lightning_perf.findings.finding import Finding
    from lightning_perf.memory_snapshot.document import MemoryReport

Result: TypeAlias = dict[str, Any]
Folders: TypeAlias = Sequence[Path]
PathText: TypeAlias = Annotated[str, Meta(max_length=4096)]

MORE = "more"
"""Name of the tool for the next part of an answer."""


class Tool(Struct, frozen=True):
    """A tool of the server.

    Attributes:
        description: When to use it, its outcomes, and conclusions to avoid.
        answer: Returns its result, from the folders of the server and the arguments.
        runs_code: Whether it runs the user's code or loads the machine, so that it needs ``--allow-run``.
        extra_s: Time that a call may take beyond the limit of the server, from its arguments.
    """

    name: str
    description: str
    arguments: type[msgspec.Struct]
    answer: Callable[..., Result]
    runs_code: bool
    extra_s: Callable[[Any], float]

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments."""
        definition: dict[str, Any] = msgspec.json.schema(self.arguments)["$defs"][self.arguments.__name__]
        return definition


TOOLS: dict[str, Tool] = {}
"""The tools by name, in the order in which clients see them."""


def tool(
    *, runs_code: bool = False, extra_s: Callable[[Any], float] = lambda _: 0.0
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Make a tool of a function. Its first parameter gets the folders, and the others are the arguments."""

    def register(answer: Callable[..., Result]) -> Callable[..., Result]:
        hints = get_type_hints(answer, include_extras=True)
        fields: list[Any] = [
            (name, hints[name]) if parameter.default is parameter.empty else (name, hints[name], parameter.default)
            for name, parameter in list(inspect.signature(answer).parameters.items())[1:]
        ]
        title = answer.__name__.title().replace("_", "")
        arguments = msgspec.defstruct(title, fields, forbid_unknown_fields=True)
        description = " ".join((answer.__doc__ or "").split())
        TOOLS[answer.__name__] = Tool(answer.__name__, description, arguments, answer, runs_code, extra_s)
        return answer

    return register


def error_result(message: str) -> Result:
    """Return the result of a call that failed."""
    return {"outcome": "error", "message": message}


def _result(outcome: str, message: str, document: Any, *names: str, **more: Any) -> Result:
    """Return a result with a document and some of its parts."""
    parts = {name: getattr(document, name) for name in names}
    return {"outcome": outcome, "message": message, **parts, **more, "document": document}


_ENTRIES = 100_000
"""Most files that `list_runs` looks at."""


@tool()
def list_runs(
    folders: Folders,
    path: Annotated[PathText, Meta(description="Folder to search (default: all folders of the server).")] = "",
) -> Result:
    """List the folders that hold traces, runs or studies, the newest first.

    Start here if you have no path.
    """
    from lightning_perf.memory_snapshot.snapshot import is_snapshot
    from lightning_perf.run_files.captures import is_capture_folder
    from lightning_perf.run_files.journal import STUDY_NAME
    from lightning_perf.run_files.run_record import RECORD_NAME
    from lightning_perf.run_files.traces import PROFILER_SUFFIXES

    found: list[tuple[float, Result]] = []
    entries = 0
    for root in [resolve_path(path, folders)] if path else folders:
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


@tool()
def analyze(
    folders: Folders,
    path: Annotated[
        PathText, Meta(description="A trace (.json or .json.gz), the folder of one run, or a memory snapshot.")
    ],
    by_shape: Annotated[bool, Meta(description="Separate operators by the shapes of their inputs.")] = False,
) -> Result:
    """Find out where the step time of a training goes and what to change, from a torch.profiler trace or a run of
    PerfCallback. Each finding has a rule ID, evidence, the fix, and a range of the estimated saving. Outcomes:
    findings, no_finding, and memory for a snapshot of torch.cuda.memory. An estimate is a prediction, not a
    measurement: apply the fix, then use compare. held_back lists findings that the whole run contradicts: do not
    advise them.
    """  # noqa: D205
    from lightning_perf.memory_snapshot.snapshot import is_snapshot
    from lightning_perf.report import build

    place = resolve_path(path, folders)
    if is_snapshot(place):
        memory = _analyze_snapshot(place)
        message = "A memory snapshot has no findings. The text shows who held the memory at the peak."
        return _result("memory", message, memory, text=memory.to_markdown())
    report = build.analyze(place, by_shape=by_shape, executor=_analyze_here)
    found = (*report.findings, *report.fit_findings)
    held_back = [
        {"rule": held.finding.kind, "title": held.finding.title, "reason": held.reason} for held in report.held_back
    ]
    message = (
        f"{counted(len(found), 'finding')}, the largest estimated saving first. "
        "Estimates are predictions: measure the change."
        if found
        else "No finding: no rule found a cause that could save 3 % of the step or more. That does not prove that the "
        "training cannot be faster."
    )
    return _result(
        "findings" if found else "no_finding",
        message,
        report,
        verdict=report.verdict,
        findings=list(map(_finding, found)),
        held_back=held_back,
        notes=report.notes,
    )


def _analyze_snapshot(path: Path) -> MemoryReport:
    """Analyze a snapshot in this process, which is confined and has a memory limit."""
    from lightning_perf.memory_snapshot.build import build_report
    from lightning_perf.memory_snapshot.snapshot import read_snapshot

    return build_report(read_snapshot(path), path)


def _finding(found: Finding) -> Result:
    estimate: Result | None = None
    if found.saving_low_ms is not None and found.saving_high_ms is not None:
        savings_ms = found.saving_low_ms, found.saving_high_ms
        estimate = {
            "saving_ms": [round(saving, 3) for saving in savings_ms],
            "per": found.per,
            "share": [round(saving / found.step_ms, 3) for saving in savings_ms] if found.step_ms else None,
            "basis": found.basis,
            "model": found.model,
        }
    return {
        "rule": found.kind,
        "severity": found.severity,
        "title": found.title,
        "evidence": found.evidence,
        "fix": found.action,
        "changes_results": found.changes or None,
        "estimate": estimate,
        "rank": found.rank,
        "page": found.page,
    }


def _analyze_here(groups: Sequence[Sequence[Path]], *, by_shape: bool = False) -> Any:
    """Analyze ranks in this process. Another process would not be confined to the folders."""
    from lightning_perf.report.recording import analyze_recording

    return [analyze_recording(group, by_shape=by_shape) for group in groups]


@tool()
def diff(
    folders: Folders,
    before: Annotated[PathText, Meta(description="Trace or run folder before the change.")],
    after: Annotated[PathText, Meta(description="Trace or run folder after the change.")],
) -> Result:
    """Show which categories, operators and kernels changed from one recording to another.

    Use it to see where a change acted. Outcomes: faster, slower, same, incomparable, not_comparable, and memory for two
    memory snapshots. One pair cannot separate a change from noise: do not conclude from it that a change helped. Use
    compare for that.
    """
    from lightning_perf.estimates.followed import diff_runs
    from lightning_perf.memory_snapshot.compared import compare_snapshots
    from lightning_perf.memory_snapshot.snapshot import is_snapshot

    paths = [resolve_path(text, folders) for text in (before, after)]
    if all(map(is_snapshot, paths)):
        changed = compare_snapshots(*map(_analyze_snapshot, paths))
        message = "Two memory snapshots. The text shows which lines hold more memory."
        return _result("memory", message, changed, text=changed.to_markdown())
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
    return _result(
        "not_comparable" if mismatches else compared.step.verdict,
        message,
        compared,
        mismatches=mismatches,
        unchecked=compared.comparability.unchecked,
        step=compared.step,
        changed=tables,
        notes=compared.notes,
    )


@tool()
def compare(
    folders: Folders,
    arms: Annotated[
        Mapping[str, Annotated[list[PathText], Meta(min_length=1)]],
        Meta(description="Name of each arm and its folders. The first arm is the baseline. Leave out for a study."),
    ] = {},
    study: Annotated[PathText, Meta(description="Folder of a study, in place of arms.")] = "",
    treatment: Annotated[tuple[str, ...], Meta(description="Facts being tested, e.g. precision.")] = (),
    allow: Annotated[tuple[str, ...], Meta(description="Other facts that may differ, e.g. code.")] = (),
    gates: Annotated[tuple[str, ...], Meta(description="Limits, e.g. step_time<=1.05 or accuracy>=-0.01.")] = (),
) -> Result:
    """Decide from repeated runs whether a change made training faster, with intervals and gates.

    Outcomes: faster, slower, equivalent, inconclusive, diverged, unfinished, several (see candidates), refused,
    invalid_runs. If it refused, the runs differ in more than the treatment. If it is inconclusive, an effect is still
    possible, and more runs are needed. Declare gates before you look at the runs. Allow a fact only if the user says
    so.
    """
    from lightning_perf.compare.judge import judge_arms
    from lightning_perf.compare.records.record import find_records
    from lightning_perf.compare.verdicts.comparison import InvalidRuns, Unfair
    from lightning_perf.compare.verdicts.gates import Settings, parse_gate

    if bool(study) == bool(arms):
        raise LocatedError("arguments", "give either study or arms", 'E.g. {"arms": {"old": ["a"], "new": ["b"]}}')
    import_extra("scipy", "compare")
    settings = Settings(treatment=treatment, allow=allow, gates=tuple(map(parse_gate, gates)))
    runs: Path | Mapping[str, Sequence[RunRecord]]
    if study:
        runs = resolve_path(study, folders)
    else:
        runs = {
            name: [record for text in paths for record in find_records(resolve_path(text, folders))]
            for name, paths in arms.items()
        }
    result = judge_arms(runs, settings, store=False)
    if isinstance(result, Unfair):
        message = f"Refused: {result.message} Repeat the runs with equal settings, or name the facts in allow."
        return _result("refused", message, result, differences=result.rows)
    if isinstance(result, InvalidRuns):
        return _result("invalid_runs", result.message, result)
    kinds = {candidate.verdict.kind.value for candidate in result.candidates}
    outcome = kinds.pop() if len(kinds) == 1 else "several"
    message = " ".join(candidate.verdict.headline for candidate in result.candidates)
    return _result(
        outcome,
        message,
        result,
        baseline=result.baseline,
        candidates=list(map(_candidate, result.candidates)),
        gates=result.gates,
        notes=result.notes,
    )


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


@tool()
def history(
    folders: Folders,
    store: Annotated[PathText, Meta(description="Folder of a history, e.g. perf-history.")],
    metric: Annotated[str, Meta(max_length=100, description="Metric of a comparison, e.g. throughput.")] = "step_time",
    since: Annotated[str, Meta(max_length=100, description="Show rows from this date or commit on. Empty for all.")] = (
        ""
    ),
) -> Result:
    """Show where a metric changed over the commits of a stored history, with an interval and the commits that may have
    caused it. Machines are never mixed: each has a series of its own. Outcomes: changed, no_change. A series with a
    note may have too few rows for a change.
    """  # noqa: D205
    from lightning_perf.history.read import read_history

    place = resolve_path(store, folders)
    found = read_history(place, metric=metric, since=since or None, repository=place)
    changes = sum(len(series.changes) for series in found.series)
    rows = sum(len(series.rows) for series in found.series)
    if changes:
        message = f"{counted(changes, 'change')} of {found.metric} in {counted(rows, 'row')}."
    else:
        message = (
            f"No certain change of {found.metric} in {counted(rows, 'row')}. A small or a very recent change may be "
            "missing."
        )
    shown = [
        {
            "name": series.name,
            "rows": len(series.rows),
            "level": series.rows[-1].level,
            "noise": series.noise,
            "changes": series.changes,
            "note": series.note,
        }
        for series in found.series
    ]
    outcome = "changed" if changes else "no_change"
    parts = {"metric": found.metric, "series": shown, "baselines": found.baselines, "notes": found.notes}
    return _result(outcome, message, found, **parts)


@tool()
def explain(
    folders: Folders,  # noqa: ARG001
    rule: Annotated[str, Meta(max_length=200, description="ID of a rule, e.g. input-bound. Empty for a list.")] = "",
) -> Result:
    """Return the page of a rule by its ID: symptom, threshold, fix, and how to verify it.

    Without a rule, list all.
    """
    from lightning_perf.findings import pages

    found = pages.explain(rule or None).rules
    if rule:
        (page,) = found
        message = page.symptom
        return {"outcome": "explained", "message": message, "rule": page.rule, "page": page.page, "text": page.text}
    rules = {page.rule: page.symptom for page in found}
    return {"outcome": "listed", "message": f"{len(rules)} rules, with their symptoms.", "rules": rules}


@tool()
def explain_nan(
    folders: Folders, path: Annotated[PathText, Meta(description="Folder of a run with precision.json.")]
) -> Result:
    """Return why the loss of a run turned NaN or infinite in mixed precision: step, operator, and the layers to keep
    in FP32. Outcomes: diagnosed, no_diagnosis.
    """  # noqa: D205
    from lightning_perf.report.document import diagnose_nan

    diagnosis = diagnose_nan(resolve_path(path, folders))
    found = diagnosis.bad_run
    if found is None:
        message = "No step of this run had a loss of NaN or infinity, as far as it was checked."
        return _result("no_diagnosis", message, diagnosis)
    message = f"The loss or the gradients went wrong in step {found.step}."
    return _result("diagnosed", message, diagnosis, diagnosis=found)


@tool()
def estimates(
    folders: Folders,
    paths: Annotated[tuple[PathText, ...], Meta(description="Folders with runs (default: all of the server).")] = (),
) -> Result:
    """Show how often measured gains were inside the ranges that findings estimated.

    Use it to judge how far to trust an estimate. Outcomes: measured, no_estimates.
    """
    from lightning_perf.estimates.calibration import calibrate
    from lightning_perf.run_files.estimates import find_outcomes

    import_extra("scipy", "compare")
    places = [resolve_path(text, folders) for text in paths] or list(folders)
    outcomes = [outcome for place in places for outcome in find_outcomes(place)]
    if not outcomes:
        message = "No measured estimate in these folders: nothing is known about how often estimates came true here."
        return {"outcome": "no_estimates", "message": message}
    calibration = calibrate(outcomes, [str(place) for place in places])
    message = f"{len(calibration.estimates)} estimates with a measured gain."
    return _result("measured", message, calibration, "totals", "rules")


@tool(runs_code=True, extra_s=lambda arguments: 2 * arguments.seconds)
def probe(
    folders: Folders,
    path: Annotated[PathText, Meta(description="A trace or the folder of a run.")],
    seconds: Annotated[float, Meta(gt=0, le=300, description="Time for the probe.")] = 10.0,
) -> Result:
    """Run the recorded operators again on this machine in other settings, and estimate the gain of each.

    Loads the machine. Needs a server started with --allow-run. Outcomes: measured, nothing_measured, refused.
    """
    from lightning_perf.probe.run import probe_path
    from lightning_perf.run_files.report import REPORT_NAME

    import_extra("torch", "train")
    place = resolve_path(path, folders)
    if place.name == REPORT_NAME:  # it names traces anywhere on the machine
        place = place.parent
    elif place.suffix == ".json" and not place.name.endswith(".trace.json"):
        raise LocatedError(place, "not the name of a trace", "Give a folder, or a file that ends with .trace.json")
    found = probe_path(place, seconds)
    message = f"{len(found.changes)} changes measured on {found.device}. A range that includes 0 shows no gain."
    outcome = "measured" if found.changes else "nothing_measured"
    return _result(outcome, message, found, "step_ns", "same_device", "changes", "skipped")


@tool(runs_code=True, extra_s=lambda arguments: 120 * arguments.minutes)
def tune(
    folders: Folders,
    training: Annotated[str, Meta(max_length=500, description="package.module:name of a function that returns it.")],
    minutes: Annotated[float, Meta(gt=0, le=120, description="Time budget.")] = 15.0,
    levers: Annotated[tuple[str, ...], Meta(description="Levers or families to try (default: all that apply).")] = (),
) -> Result:
    """Try settings on the user's training and keep those that measure faster, with the lines to change.

    Runs the user's code for minutes. Needs a server started with --allow-run. Outcomes: kept, nothing_kept, refused.
    """
    import_extra("torch", "train")
    import_extra("scipy", "compare")
    from lightning_perf.tune.tuner import PerfTuner

    source = resolve_source(training, folders)
    result = PerfTuner(minutes=minutes, levers=list(levers)).tune(source, on_progress=lambda _: None)
    message = (
        f"Kept {', '.join(result.kept)}: change the lines in lines."
        if result.kept
        else "No lever was kept: none was certainly faster on this training and machine."
    )
    outcome = "kept" if result.kept else "nothing_kept"
    return _result(outcome, message, result, "lines", "confirmed", "combined", "trials", "notes")


@tool(runs_code=True, extra_s=lambda arguments: 2 * arguments.seconds)
def data(
    folders: Folders,
    source: Annotated[str, Meta(max_length=500, description="package.module:name of a function that returns it.")],
    seconds: Annotated[float, Meta(gt=0, le=300, description="How long to load.")] = 10.0,
    step_ms: Annotated[float | None, Meta(description="Time of a training step without waits for data.")] = None,
) -> Result:
    """Load batches of the user's data set and time each stage, to find the limit of loading.

    Runs the user's code. Needs a server started with --allow-run. Outcomes: measured, refused.
    """
    from lightning_perf.loading import measure_source

    report = measure_source(resolve_source(source, folders), seconds=seconds, step_ms=step_ms)
    return _result("measured", report.advice, report, "limit", "stages", "needed_workers")


@tool()
def more(
    folders: Folders, handle: Annotated[str, Meta(max_length=4096, description="The value of a member named more.")]
) -> Result:
    """Return the next part of an answer that was cut.

    Give the handle from a member named more. The member document of an answer has such a handle for the whole document,
    e.g. to read the tables of kernels. The server keeps the last answers only: if a handle has expired, call the tool
    again.
    """
    raise NotImplementedError  # the server answers it from the answers that it keeps
