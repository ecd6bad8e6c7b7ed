"""Builds a `PerfReport` from trace files."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lightning_perf import __version__
from lightning_perf.analysis.compilation.summary import CompileReport, summarize_compilations
from lightning_perf.analysis.precision.forecast import Forecast, forecast, product_time
from lightning_perf.analysis.precision.fp8_layers import Fp8Layers, summarize_fp8
from lightning_perf.analysis.precision.shadow import ShadowDrift, summarize_shadow
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.ranks.distributed import Distributed, distributed
from lightning_perf.analysis.steps.breakdown import Breakdown
from lightning_perf.analysis.steps.fit_time import FitTime, summarize_account
from lightning_perf.analysis.steps.memory_growth import MemoryGrowth, summarize_growth
from lightning_perf.analysis.steps.step_times import StepTimes, summarize_step_times
from lightning_perf.analysis.trust import trust
from lightning_perf.errors import TraceError
from lightning_perf.findings.registry import find, find_in_fit
from lightning_perf.findings.whole_run import check_findings
from lightning_perf.report.captured import captured
from lightning_perf.report.document import SCHEMA_VERSION, PerfReport
from lightning_perf.report.labels import count_of
from lightning_perf.report.recordings import RecordingExecutor, analyze_recordings
from lightning_perf.report.sentences import who_waits
from lightning_perf.report.slow_stretch import slowness_notes
from lightning_perf.report.verdict import judge
from lightning_perf.run_files.fit.account import account_paths, read_account
from lightning_perf.run_files.fit.compilations import COMPILATIONS
from lightning_perf.run_files.fit.memory_growth import read_growth
from lightning_perf.run_files.fit.out_of_memory import OutOfMemory, has_out_of_memory, read_out_of_memory
from lightning_perf.run_files.notes import read_notes
from lightning_perf.run_files.numerics.forecast import FORECAST
from lightning_perf.run_files.numerics.fp8 import FP8
from lightning_perf.run_files.numerics.precision import PRECISION_NAME, RunPrecision, read_precision
from lightning_perf.run_files.numerics.shadow import SHADOW
from lightning_perf.run_files.probe import PROBE_NAME, Probe, read_probe
from lightning_perf.run_files.steps import STEPS, StepSample, StepSamples
from lightning_perf.run_files.traces import find_traces, group_windows, rank_in_name
from lightning_perf.run_files.windows import WINDOWS, RecordedWindow
from lightning_perf.units import format_duration, format_share

__all__ = ["LiveFit", "analyze", "build_report"]


MISSING_NAMED = 8
"""Missing ranks that a note names."""

DRIVING_SHARE = 0.05
"""From this share of the step in runtime calls on, the host drives a device, even if no device work was recorded."""


EARLY_SHARE = 0.01
"""From this share of device work that begins before its launch on, a note says that the clocks disagree."""


@dataclass(frozen=True)
class LiveFit:
    """Facts of a fit that has just ended, beyond the files in its folder.

    Attributes:
        notes: Remarks on the recording, in place of the notes in the folder.
        precision: The precision of the fit and its effects, in place of the summary in the folder.
        unsaved: Step times that are in no file, because the disk is full or there is no folder.
    """

    notes: Sequence[str] = ()
    precision: RunPrecision | None = None
    unsaved: Sequence[StepSample] = ()


def analyze(
    path: str | os.PathLike[str],
    *,
    by_shape: bool = False,
    executor: RecordingExecutor = analyze_recordings,
    live: LiveFit | None = None,
    probe: Probe | None = None,
) -> PerfReport:
    """Analyze a trace, or all traces of a run.

    Args:
        path: A trace file (``.json`` or ``.json.gz``), or the folder of one run. For a folder, the ranks are compared,
            the windows of each rank are analyzed together, and the step times that `PerfCallback` left are included.
        by_shape: Whether operators with different input shapes get rows of their own.
        executor: Where to analyze the recordings of the ranks: in processes of this machine, or on a Ray cluster with
            `lightning_perf.compare.RayRecordings`.
        live: Facts that `PerfCallback` knows at the end of its fit. With them, a report is made even if no trace can
            be read.
        probe: A probe of these traces that was just made; by default the one in the folder, if there is any.

    Returns:
        The report.

    Raises:
        TraceError: There is no trace, or none can be read.

    Example:
        >>> import lightning_perf
        >>> report = lightning_perf.analyze("lightning_logs/version_0/perf")  # doctest: +SKIP
        >>> print(report.verdict.where)  # doctest: +SKIP
        A step takes 178 ms (mean of 6): 55.5 % is device compute, 33.4 % waits for the next batch.
    """
    notes: list[str] = []
    samples = live.unsaved if live is not None else ()
    try:
        traces = find_traces(path)
    except TraceError:
        logs = STEPS.paths(Path(path))
        if not logs and live is None and not has_out_of_memory(Path(path)):
            raise
        traces = ()  # a run that was too short to be profiled
    else:
        logs = STEPS.paths(traces[0].parent) if Path(path).is_dir() else []
    if logs and not samples:
        try:
            samples = STEPS.read(logs[0])
        except TraceError as error:
            if not traces:
                raise
            notes.append(f"Step times are left out: {error}")
    precision = None
    folder = _folder(Path(path), traces)
    if live is not None:
        notes += live.notes
        precision = live.precision
    elif folder is not None:
        try:
            notes += read_notes(folder)
        except TraceError as error:
            notes.append(f"The callback's notes are left out: {error}")
    if live is None and folder is not None and (folder / PRECISION_NAME).exists():
        try:
            precision = read_precision(folder / PRECISION_NAME)
        except TraceError as error:
            notes.append(f"The run's precision is left out: {error}")
    build = functools.partial(
        build_report,
        samples=samples,
        precision=precision,
        by_shape=by_shape,
        folder=folder,
        executor=executor,
        probe=probe,
    )
    try:
        return build(traces, notes=notes)
    except TraceError as error:
        if live is None:
            raise
        # The training is over and cannot be repeated for its report, so its step times are reported anyway.
        return build((), notes=[*notes, f"Left out, unreadable: {error}"])


def _folder(path: Path, traces: Sequence[Path]) -> Path | None:
    """Return the folder with the other files of the traces; None for a single trace file."""
    return (traces[0].parent if traces else path) if path.is_dir() else None


def build_report(
    traces: Sequence[str | os.PathLike[str]],
    *,
    samples: Sequence[StepSample] = (),
    notes: Sequence[str] = (),
    precision: RunPrecision | None = None,
    by_shape: bool = False,
    folder: Path | None = None,
    executor: RecordingExecutor = analyze_recordings,
    probe: Probe | None = None,
) -> PerfReport:
    """Build the report of one run from its parts.

    Args:
        traces: Its trace files, of any rank and window. Without any, the report holds step times only.
        samples: Step times by the always-on timer, of one rank.
        notes: Further remarks for the reader.
        precision: The run's precision and its effects.
        by_shape: Whether operators with different input shapes get rows of their own.
        folder: The run's folder, which holds the profiler's cost and captures; None if there is no such folder.
        executor: Where to analyze the recordings of the ranks.
        probe: A probe of the traces; by default the one in the folder, if there is any.

    Returns:
        The report.

    Raises:
        TraceError: There are traces, but none can be read.
    """
    paths = [Path(trace) for trace in traces]
    results = executor(group_windows(paths), by_shape=by_shape) if paths else []
    ranks = [analysis for result in results for analysis in result.analyses]
    errors = [error for result in results for error in result.errors]
    if paths and not ranks:
        raise errors[0]
    ranks.sort(key=lambda analysis: (analysis.rank is None, analysis.rank or 0, analysis.sources))
    probe_notes = _attach_probe(folder, ranks, probe)
    compared = distributed([times for result in results for times in result.times])
    step_times = summarize_step_times(samples) if samples else None
    lead = lead_rank(ranks, compared)
    windows, window_notes = _windows(folder)
    captures, capture_notes = captured(folder, ranks) if folder is not None else ((), [])
    fit_time, account_notes = _fit_time(folder)
    growth, growth_notes = _memory_growth(folder)
    compilation, compile_notes = _compilation(folder, ranks, fit_time, samples)
    fit_findings = find_in_fit(fit_time, compilation=compilation, growth=growth)
    trusted = trust(ranks, samples, windows)
    forecasted, forecast_notes = _forecast(folder, precision, lead)
    shadow, shadow_notes = _shadow(folder)
    fp8, fp8_notes = _fp8(folder)
    failures, failure_notes = _out_of_memory(folder)
    found = find(ranks, compared)
    logged = _logged_rank(folder)
    checked = check_findings(
        found,
        ranks,
        run=step_times,
        run_rank=logged,
        other_ranks=_step_times(folder, {finding.rank for finding in found} - {logged}) if step_times else {},
        lead=lead,
        trusted=trusted,
    )
    return PerfReport(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        sources=tuple(source for analysis in ranks for source in analysis.sources),
        verdict=judge(
            lead,
            checked.findings,
            step_times,
            held_back=checked.held_back,
            headline=checked.headline,
            fit_findings=fit_findings,
        ),
        notes=(
            *failure_notes,
            *notes,
            *_notes(ranks, errors),
            *checked.notes,
            *slowness_notes(lead, step_times, trusted),
            *window_notes,
            *capture_notes,
            *forecast_notes,
            *probe_notes,
            *account_notes,
            *growth_notes,
            *compile_notes,
            *shadow_notes,
            *fp8_notes,
        ),
        findings=checked.findings,
        lead=ranks.index(lead) if lead is not None else None,
        ranks=tuple(ranks),
        distributed=compared,
        step_times=step_times,
        precision=precision,
        trust=trusted,
        captures=captures,
        who_waits=who_waits(compared),
        held_back=checked.held_back,
        forecast=forecasted,
        fit_time=fit_time,
        fit_findings=fit_findings,
        shadow=shadow,
        fp8=fp8,
        out_of_memory=failures,
        memory_growth=growth,
        compilation=compilation,
    )


def _fit_time(folder: Path | None) -> tuple[FitTime | None, list[str]]:
    """Read the account of the fit, of the same rank as the step times: the first one."""
    paths = account_paths(folder) if folder is not None else ()
    if not paths:
        return None, []
    try:
        return summarize_account(read_account(paths[0])), []
    except TraceError as error:
        return None, [f"The account of the fit is left out: {error}"]


def _logged_rank(folder: Path | None) -> int | None:
    """Return the rank of the step log that is read: the first one in the folder."""
    logs = STEPS.paths(folder) if folder is not None else []
    return rank_in_name(logs[0].name) if logs else None


def _step_times(folder: Path | None, ranks: Collection[int | None]) -> dict[int, StepTimes]:
    """Read the step times of some ranks, as far as possible. Without them, findings of a rank stay unchecked."""
    found = {}
    for rank in ranks:
        path = STEPS.path(folder, rank) if folder is not None and rank is not None else None
        if rank is None or path is None or not path.exists():
            continue
        try:
            samples = STEPS.read(path)
        except TraceError:
            continue
        if samples:
            found[rank] = summarize_step_times(samples)
    return found


def _attach_probe(folder: Path | None, ranks: list[RankAnalysis], probe: Probe | None) -> list[str]:
    """Add the result of a probe to the rank that was probed, unless its traces have changed since."""
    if probe is None:
        if folder is None or not (folder / PROBE_NAME).exists():
            return []
        try:
            probe = read_probe(folder / PROBE_NAME)
        except TraceError as error:
            return [f"The probe is left out: {error}"]
    for place, analysis in enumerate(ranks):
        names = {Path(source).name for source in analysis.sources}
        if names == set(probe.sources):
            ranks[place] = replace(analysis, probe=probe)
            return []
    return ["The probe is left out: it was made of other traces. Run lightning-perf analyze --probe."]


def _compilation(
    folder: Path | None, ranks: Sequence[RankAnalysis], fit_time: FitTime | None, samples: Sequence[StepSample]
) -> tuple[CompileReport | None, list[str]]:
    """Read the compilations of the first rank that compiled anything."""
    files = COMPILATIONS.paths(folder) if folder is not None else []
    if not files:
        return None, []
    rank = rank_in_name(files[0].name) or 0
    fit_ns, steps = (fit_time.wall_ns, fit_time.steps) if fit_time is not None else (None, None)
    if fit_time is None and samples:  # a loop without a Trainer has no account
        fit_ns, steps = int(StepSamples.of(samples).step_ns.sum()), len(samples)
    calls = next((each.compiled_calls for each in ranks if each.rank in (rank, None)), None)
    try:
        compilations = COMPILATIONS.read(files[0])
    except TraceError as error:
        return None, [f"The compilations are left out: {error}"]
    return summarize_compilations(compilations, rank=rank, fit_ns=fit_ns, steps=steps, calls=calls), []


def _windows(folder: Path | None) -> tuple[tuple[RecordedWindow, ...], list[str]]:
    """Read the profiler's log of the same rank as the step times: the first one."""
    files = WINDOWS.paths(folder) if folder is not None else []
    logs = STEPS.paths(folder) if folder is not None else []
    same = [path for path in files if logs and rank_in_name(path.name) == rank_in_name(logs[0].name)]
    if not same:
        return (), []
    try:
        return WINDOWS.read(same[0]), []
    except TraceError as error:
        return (), [f"The profiler's cost is left out: {error}"]


def _forecast(
    folder: Path | None, precision: RunPrecision | None, lead: RankAnalysis | None
) -> tuple[Forecast | None, list[str]]:
    """Read the samples for the forecast of number formats, of the first rank."""
    files = FORECAST.paths(folder) if folder is not None else []
    if not files:
        return None, []
    try:
        samples = FORECAST.read(files[0])
    except TraceError as error:
        return None, [f"The forecast of number formats is left out: {error}"]
    measured = None
    if lead is not None:
        names = [device.name for device in lead.metadata.devices if device.name]
        measured = product_time(lead.kernels, names[0] if names else None, lead.breakdown.wall.mean_ns)
    return forecast(samples, precision=precision.setting.precision if precision else None, measured=measured), []


def _shadow(folder: Path | None) -> tuple[ShadowDrift | None, list[str]]:
    files = SHADOW.paths(folder) if folder is not None else []
    if not files:
        return None, []
    try:
        return summarize_shadow(SHADOW.read(files[0])), []
    except TraceError as error:
        return None, [f"The shadow steps are left out: {error}"]


def _fp8(folder: Path | None) -> tuple[Fp8Layers | None, list[str]]:
    files = FP8.paths(folder) if folder is not None else []
    if not files:
        return None, []
    try:
        return summarize_fp8(FP8.read(files[0])), []
    except TraceError as error:
        return None, [f"The FP8 layers are left out: {error}"]


def _memory_growth(folder: Path | None) -> tuple[MemoryGrowth | None, list[str]]:
    try:
        record = read_growth(folder) if folder is not None else None
    except TraceError as error:
        return None, [f"The memory over time is left out: {error}"]
    return summarize_growth(record) if record is not None else None, []


def _out_of_memory(folder: Path | None) -> tuple[tuple[OutOfMemory, ...], list[str]]:
    try:
        failures = read_out_of_memory(folder) if folder is not None else ()
    except TraceError as error:
        return (), [f"The report on missing memory is left out: {error}"]
    return failures, [failure.sentence for failure in failures[:1]]


def lead_rank(ranks: Sequence[RankAnalysis], compared: Distributed | None) -> RankAnalysis | None:
    """Return the rank that a report describes first: the one that others wait for, or the one with the longest steps.

    Args:
        ranks: The ranks.
        compared: The comparison of the ranks; ``None`` for a run of one.
    """
    sound = [analysis for analysis in ranks if not analysis.breakdown.truncated] or list(ranks)
    if compared is not None and compared.straggler is not None:
        sound = [analysis for analysis in sound if analysis.rank == compared.straggler.rank] or sound
    return max(sound, key=lambda analysis: analysis.breakdown.wall.mean_ns or 0.0, default=None)


def _notes(ranks: Sequence[RankAnalysis], errors: Sequence[TraceError]) -> list[str]:
    notes = [f"Left out, unreadable: {error}" for error in errors]
    known = {analysis.rank for analysis in ranks if analysis.rank is not None}
    world = max((analysis.metadata.world_size or 0 for analysis in ranks), default=0)
    missing = sorted(set(range(world)) - known) if known else []
    if missing:
        some = ", ".join(map(str, missing[:MISSING_NAMED]))
        more = f" and {len(missing) - MISSING_NAMED} more" if len(missing) > MISSING_NAMED else ""
        notes.append(f"The run has {world} ranks, but {count_of(len(missing), 'rank')} left no trace: {some}{more}.")
    for rank, number in sorted(Counter(analysis.rank for analysis in ranks if analysis.rank is not None).items()):
        if number > 1:
            notes.append(f"{number} recordings say that they are rank {rank}. They are analyzed separately.")
    for analysis in ranks:
        notes += _recording_notes(analysis, Path(analysis.sources[0]).name)
    return notes


def _drives_device(breakdown: Breakdown) -> bool:
    """Whether the host launched work, or made more runtime calls than the few of the profiler itself."""
    rows = [breakdown.category(name) for name in ("kernel_launch", "runtime")]
    return bool(rows[0].mean_ns) or (rows[1].share or 0.0) >= DRIVING_SHARE


def _recording_notes(analysis: RankAnalysis, name: str) -> list[str]:
    notes = []
    problems, breakdown, processor = analysis.problems, analysis.breakdown, analysis.metadata.processor
    if problems.truncated:
        notes.append(f"{name} ends early: its times are lower bounds, and shares are left out.")
    if not breakdown.marked:
        notes.append(f"{name} marks no steps (ProfilerStep#n): the figures are for the whole recording.")
    elif breakdown.averages_cut_steps:
        notes.append(f"{name} holds no complete step: the averages include steps that the recording cut off.")
    if not breakdown.has_device and _drives_device(breakdown):
        notes.append(
            f"{name} holds calls to a device but no device work: activities= of the profiler lacks the device, or "
            "another profiler used its recorder. The figures are for the host only."
        )
    elif not breakdown.has_device and not (processor is not None and processor.trains):
        notes.append(f"{name} holds no device work: this is a recording of the host only.")
    skew = analysis.clock_skew
    if skew is not None and skew.early >= EARLY_SHARE * skew.linked:
        notes.append(
            f"{name}: {format_share(skew.early / skew.linked)} of the device's work begins before the call that "
            f"launched it, by up to {format_duration(skew.lead_ns)}. The clocks of host and device disagree by that or "
            "more. Hidden, exposed and idle times are unknown. The times of kernels and operators are right."
        )
    for number, what in (
        (problems.repaired_events, "was repaired"),
        (problems.dropped_events, "could not be read"),
        (problems.bad_durations, "has no usable time or duration"),
    ):
        if number:
            notes.append(f"{name}: {count_of(number, 'event')} {what if number == 1 else _plural(what)}.")
    return notes


def _plural(what: str) -> str:
    return what.replace("was ", "were ").replace("has ", "have ")
