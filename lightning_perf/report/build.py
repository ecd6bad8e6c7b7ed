"""Builds a `PerfReport` from trace files."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from lightning_perf import __version__
from lightning_perf.analysis.compilation import CompileReport, summarize_compilations
from lightning_perf.analysis.precision.forecast import Forecast, forecast, product_time
from lightning_perf.analysis.precision.scales import summarize_fp8, summarize_shadow
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.ranks.distributed import Distributed, distributed, link_use
from lightning_perf.analysis.ranks.whole_fit import RanksOverFit, compare_step_logs
from lightning_perf.analysis.steps.fit_time import FitTime, summarize_account, summarize_growth
from lightning_perf.analysis.steps.step_times import StepTimes, mfu_of_run, summarize_step_times, usual_step
from lightning_perf.analysis.trust import trust
from lightning_perf.errors import TraceError
from lightning_perf.findings.conditions import shared_gpu_notes
from lightning_perf.findings.whole_run import check_findings, find, find_in_fit
from lightning_perf.report.captured import captured
from lightning_perf.report.document import SCHEMA_VERSION, PerfReport
from lightning_perf.report.recordings import RecordingExecutor, analyze_recordings
from lightning_perf.report.sentences import slowness_notes, who_waits
from lightning_perf.report.verdict import drives_device, judge
from lightning_perf.run_files.captures import WINDOWS
from lightning_perf.run_files.fit.account import FitAccount, account_paths, read_account
from lightning_perf.run_files.fit.compilations import COMPILATIONS
from lightning_perf.run_files.fit.gpu_health import GPU_HEALTH, GpuHealth
from lightning_perf.run_files.fit.memory_growth import GrowthRecord, read_growth
from lightning_perf.run_files.fit.out_of_memory import has_out_of_memory, read_out_of_memory
from lightning_perf.run_files.hangs import HANGS, open_hangs
from lightning_perf.run_files.jsonl import RankLog
from lightning_perf.run_files.numerics.precision import PRECISION_NAME, RunPrecision, read_precision
from lightning_perf.run_files.numerics.samples import FORECAST, FP8, SHADOW
from lightning_perf.run_files.probe import PROBE_NAME, Probe, read_probe
from lightning_perf.run_files.report import read_notes
from lightning_perf.run_files.run_folder import full_disk_notes
from lightning_perf.run_files.steps import STEPS, StepSample, StepSamples
from lightning_perf.run_files.traces import find_traces, group_windows, rank_in_name
from lightning_perf.units import counted, format_duration, format_share

_Part = TypeVar("_Part")
_Line = TypeVar("_Line")

MISSING_NAMED = 8
"""Missing ranks that a note names."""


MAX_COMPARED = 5_000_000
"""Steps of all ranks together that are compared at most. In longer fits, every n-th step of a rank is."""

EARLY_SHARE = 0.01
"""From this share of device work that begins before its launch on, a note says that the clocks disagree."""


class LiveFit(Struct, frozen=True):
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
    link_bytes_per_s: float | None = None,
    executor: RecordingExecutor = analyze_recordings,
    live: LiveFit | None = None,
    probe: Probe | None = None,
) -> PerfReport:
    """Analyze a trace, or all traces of a run.

    Args:
        path: A trace file (``.json`` or ``.json.gz``), or the folder of one run. For a folder, the ranks are compared,
            the windows of each rank are analyzed together, and the step times that `PerfCallback` left are included.
        by_shape: Whether operators with different input shapes get rows of their own.
        link_bytes_per_s: Peak bandwidth of the link between the devices in one direction; by default that of NVLink or
            PCIe if the run is known to be on one machine.
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
    samples = live.unsaved if live is not None else ()
    try:
        traces = find_traces(path)
    except TraceError:
        logs = STEPS.paths(Path(path))
        others = has_out_of_memory(Path(path)) or full_disk_notes(Path(path)) or HANGS.paths(Path(path))
        if not logs and live is None and not others:
            raise
        traces = ()  # a run that was too short to be profiled
    else:
        logs = STEPS.paths(traces[0].parent) if Path(path).is_dir() else []
    run = _RunFiles((traces[0].parent if traces else Path(path)) if Path(path).is_dir() else None)
    if logs and not samples:
        samples = run.read("Step times are", STEPS.read, logs[0], required=not traces) or ()
    if live is not None:
        run.notes += live.notes
        precision = live.precision
    else:
        precision = None
        if run.folder is not None:
            run.notes += run.read("The callback's notes are", read_notes, run.folder) or ()
            run.notes += full_disk_notes(run.folder)
            run.notes += [report.note for report in run.read("Reports on hangs are", open_hangs, run.folder) or ()]
            precision = run.read_named("The run's precision is", read_precision, PRECISION_NAME)
    build = functools.partial(
        build_report,
        samples=samples,
        precision=precision,
        by_shape=by_shape,
        link_bytes_per_s=link_bytes_per_s,
        folder=run.folder,
        executor=executor,
        probe=probe,
    )
    try:
        return build(traces, notes=run.notes)
    except TraceError as error:
        if live is None:
            raise
        # The training is over and cannot be repeated for its report, so its step times are reported anyway.
        return build((), notes=[*run.notes, f"Left out, unreadable: {error}"])


class _RunFiles:
    """The files of a run's folder. One that cannot be read becomes a note, and its part of the report is left out."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.notes: list[str] = []

    def read(
        self, part: str, read: Callable[[Path], _Part], path: Path | None, *, required: bool = False
    ) -> _Part | None:
        """Read a file, if there is one. Its part of the report is a subject with its verb, such as "Step times are"."""
        if path is None:
            return None
        try:
            return read(path)
        except TraceError as error:
            if required:
                raise
            self.notes.append(f"{part} left out: {error}")
            return None

    def read_named(self, part: str, read: Callable[[Path], _Part], name: str) -> _Part | None:
        """Read the file with a name, if there is one."""
        path = self.folder / name if self.folder is not None else None
        return self.read(part, read, path if path is not None and path.exists() else None)

    def paths(self, log: RankLog[_Line]) -> list[Path]:
        """Return the files of a log, by rank."""
        return log.paths(self.folder) if self.folder is not None else []

    def read_first(self, part: str, log: RankLog[_Line]) -> tuple[_Line, ...] | None:
        """Read the log of the first rank that wrote one; return None without one, or if it cannot be read."""
        return self.read(part, log.read, next(iter(self.paths(log)), None))


def build_report(
    traces: Sequence[str | os.PathLike[str]],
    *,
    samples: Sequence[StepSample] = (),
    notes: Sequence[str] = (),
    precision: RunPrecision | None = None,
    by_shape: bool = False,
    link_bytes_per_s: float | None = None,
    folder: Path | None = None,
    executor: RecordingExecutor = analyze_recordings,
    probe: Probe | None = None,
) -> PerfReport:
    """Build the report of one run from its parts.

    Args:
        traces: Its trace files, of any rank and window. Without any, the report holds step times only.
        probe: A probe of the traces; by default the one in the folder, if there is any.
    """
    paths = [Path(trace) for trace in traces]
    results = executor(group_windows(paths), by_shape=by_shape) if paths else []
    ranks = [analysis for result in results for analysis in result.analyses]
    errors = [error for result in results for error in result.errors]
    if paths and not ranks:
        raise errors[0]
    ranks.sort(key=lambda analysis: (analysis.rank is None, analysis.rank or 0, analysis.sources))
    run = _RunFiles(folder)
    _attach_probe(run, ranks, probe)
    compared = distributed([times for result in results for times in result.times])
    ranks[:] = [
        replace(each, link=link_use(each.communication.collectives, each.metadata, compared, link_bytes_per_s))
        if each.communication is not None
        else each
        for each in ranks
    ]
    logged = next((rank_in_name(path.name) for path in run.paths(STEPS)), None)
    step_times = replace(summarize_step_times(samples), rank=logged) if samples else None
    ranks[:] = [replace(each, usual=usual_step(step_times, each.breakdown)) for each in ranks]
    accounts = account_paths(folder) if folder is not None else ()
    account = run.read("The account of the fit is", read_account, next(iter(accounts), None))
    over_fit = _over_fit(run, samples, account)
    memory = run.read("The memory over time is", read_growth, folder)
    growth = summarize_growth(memory, StepSamples.of(samples).tokens) if memory is not None else None
    if memory is not None:
        ranks[:] = [_with_workers(analysis, memory) for analysis in ranks]
    lead = lead_rank(ranks, compared, over_fit)
    if step_times is not None:
        step_times = _with_mfu(step_times, lead)
    known = run.paths(WINDOWS) if logged is not None else ()
    same_rank = (path for path in known if rank_in_name(path.name) == logged)
    windows = run.read("The profiler's cost is", WINDOWS.read, next(same_rank, None)) or ()
    captures, left_out = captured(folder, ranks, executor) if folder is not None else ((), [])
    run.notes += left_out
    forecasted = _forecast(run, precision, lead)
    fit_time = summarize_account(account) if account is not None else None
    compilation = _compilation(run, ranks, fit_time, samples)
    shadow = run.read_first("The shadow steps are", SHADOW)
    fp8 = run.read_first("The FP8 layers are", FP8)
    failures = run.read("The report on missing memory is", read_out_of_memory, folder) or ()
    gpus = _gpu_health(run, logged, samples)
    fit_findings = find_in_fit(fit_time, compilation=compilation, growth=growth, gpus=gpus)
    trusted = trust(ranks, samples, windows)
    found = find(ranks, compared)
    checked = check_findings(
        found,
        ranks,
        run=step_times,
        run_rank=logged,
        other_ranks=_step_times(folder, {finding.rank for finding in found} - {logged}) if step_times else {},
        lead=lead,
        trusted=trusted,
        fit=fit_time,
        fit_findings=fit_findings,
        over_fit=over_fit,
        gpus=gpus,
        path=str(folder or paths[0]) if folder or paths else "PATH",
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
            fit=fit_time,
        ),
        notes=(
            *(failure.sentence for failure in failures[:1]),
            *notes,
            *_notes(ranks, errors),
            *checked.notes,
            *slowness_notes(lead, step_times, trusted),
            *(
                f"The GPU of rank {gpu.rank} counted {counted(gpu.uncorrected_errors, 'uncorrected memory error')} "
                "during the training, so its results may be wrong. See nvidia-smi -q -d ECC,ROW_REMAPPER."
                for gpu in gpus
                if gpu.uncorrected_errors
            ),
            *shared_gpu_notes(gpus),
            *run.notes,
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
        shadow=summarize_shadow(shadow) if shadow is not None else None,
        fp8=summarize_fp8(fp8) if fp8 is not None else None,
        out_of_memory=failures,
        memory_growth=growth,
        compilation=compilation,
        gpu_health=gpus,
        over_fit=over_fit,
    )


def _with_mfu(times: StepTimes, lead: RankAnalysis | None) -> StepTimes:
    """Return the step times with the MFU of the run, if that of the recording is known exactly."""
    use, wall = (lead.efficiency, lead.breakdown.wall) if lead is not None else (None, None)
    if lead is None or use is None or wall is None or use.mfu is None or not wall.mean_ns or not lead.breakdown.marked:
        return times
    if use.mfu_high != use.mfu or use.flops_coverage != 1:
        return times
    model = lead.language_model
    rate = model.tokens_per_second if model is not None else None
    return replace(times, mfu=mfu_of_run(times, use.mfu, wall.mean_ns, rate))


def _gpu_health(run: _RunFiles, logged: int | None, samples: Sequence[StepSample]) -> tuple[GpuHealth, ...]:
    """Read the health of each rank's GPU. For the rank with the step log, the energy per sample is known."""
    gpus = run.read("The health of the GPUs is", GPU_HEALTH.read_all, run.folder) or ()
    counts = StepSamples.of(samples).samples[1:]  # the watch starts after the first batch
    trained = int(counts.sum()) if len(counts) and counts.min() >= 0 else 0
    with_energy = (
        replace(gpu, sample_energy_j=gpu.energy_j / trained)
        if trained and gpu.rank == logged and gpu.energy_j is not None
        else gpu
        for gpu in gpus
    )
    return tuple(sorted(with_energy, key=lambda gpu: gpu.rank))


def _over_fit(run: _RunFiles, samples: Sequence[StepSample], account: FitAccount | None) -> RanksOverFit | None:
    """Compare the step logs of all ranks: the samples of the first one, and those of the others that can be read."""
    paths = run.paths(STEPS)
    if len(paths) < 2 or not samples:
        return None
    every = len(samples) * len(paths) // MAX_COMPARED | 1
    logs = {}
    for path in paths:
        log = run.read(f"Step times of {path.name} are", STEPS.read, path) if path != paths[0] else samples
        if log:
            columns = StepSamples.of(log)
            logs[rank_in_name(path.name) or 0] = columns[columns.step % every == 0]
    read = [account, *(run.read(f"{path.name} is", read_account, path) for path in account_paths(paths[0].parent)[1:])]
    return compare_step_logs(logs, [each for each in read if each is not None])


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


def _attach_probe(run: _RunFiles, ranks: list[RankAnalysis], probe: Probe | None) -> None:
    """Add the result of a probe to the rank that was probed, unless its traces have changed since."""
    if probe is None:
        probe = run.read_named("The probe is", read_probe, PROBE_NAME)
    if probe is None:
        return
    for place, analysis in enumerate(ranks):
        if {Path(source).name for source in analysis.sources} == set(probe.sources):
            ranks[place] = replace(analysis, probe=probe)
            return
    run.notes.append("The probe is left out: it was made of other traces. Run lightning-perf analyze --probe.")


def _compilation(
    run: _RunFiles, ranks: Sequence[RankAnalysis], fit_time: FitTime | None, samples: Sequence[StepSample]
) -> CompileReport | None:
    """Read the compilations of the first rank that compiled anything."""
    compilations = run.read_first("The compilations are", COMPILATIONS)
    if run.folder is None or compilations is None:
        return None
    rank = rank_in_name(COMPILATIONS.paths(run.folder)[0].name) or 0
    fit_ns, steps = (fit_time.wall_ns, fit_time.steps) if fit_time is not None else (None, None)
    if fit_time is None and samples:  # a loop without a Trainer has no account
        fit_ns, steps = int(StepSamples.of(samples).step_ns.sum()), len(samples)
    calls = next((each.compiled_calls for each in ranks if each.rank in (rank, None)), None)
    return summarize_compilations(compilations, rank=rank, fit_ns=fit_ns, steps=steps, calls=calls)


def _forecast(run: _RunFiles, precision: RunPrecision | None, lead: RankAnalysis | None) -> Forecast | None:
    """Read the samples for the forecast of number formats, of the first rank."""
    samples = run.read_first("The forecast of number formats is", FORECAST)
    if samples is None:
        return None
    measured = None
    if lead is not None:
        names = [device.name for device in lead.metadata.devices if device.name]
        measured = product_time(lead.kernels, names[0] if names else None, lead.breakdown.wall.mean_ns)
    return forecast(samples, precision=precision.setting.precision if precision else None, measured=measured)


def _with_workers(analysis: RankAnalysis, record: GrowthRecord) -> RankAnalysis:
    """Replace the workers' use of cores before the recording by that of the run: at its start, batches are ready."""
    processor, worker = analysis.metadata.processor, record.worker
    if processor is None or analysis.rank not in (record.rank, None):
        return analysis
    known = (worker.cpu, worker.core_wait) if worker is not None else (None, None)
    processor = replace(processor, worker_cpu=known[0], worker_wait=known[1])
    return replace(analysis, metadata=replace(analysis.metadata, processor=processor), worker=worker)


def lead_rank(
    ranks: Sequence[RankAnalysis], compared: Distributed | None, over_fit: RanksOverFit | None = None
) -> RankAnalysis | None:
    """Return the rank that a report describes first: the one that others wait for, or that with the longest steps."""
    sound = [analysis for analysis in ranks if not analysis.breakdown.truncated] or list(ranks)
    stragglers = [each.straggler for each in (compared, over_fit) if each is not None and each.straggler is not None]
    chosen = sound
    for straggler in stragglers:  # that of the whole fit counts, if its rank was recorded
        chosen = [analysis for analysis in sound if analysis.rank == straggler.rank] or chosen
    return max(chosen, key=lambda analysis: analysis.breakdown.wall.mean_ns or 0.0, default=None)


def _notes(ranks: Sequence[RankAnalysis], errors: Sequence[TraceError]) -> list[str]:
    notes = [f"Left out, unreadable: {error}" for error in errors]
    known = {analysis.rank for analysis in ranks if analysis.rank is not None}
    world = max((analysis.metadata.world_size or 0 for analysis in ranks), default=0)
    missing = sorted(set(range(world)) - known) if known else []
    if missing:
        some = ", ".join(map(str, missing[:MISSING_NAMED]))
        more = f" and {len(missing) - MISSING_NAMED} more" if len(missing) > MISSING_NAMED else ""
        notes.append(f"The run has {world} ranks, but {counted(len(missing), 'rank')} left no trace: {some}{more}.")
    for rank, number in sorted(Counter(analysis.rank for analysis in ranks if analysis.rank is not None).items()):
        if number > 1:
            notes.append(f"{number} recordings say that they are rank {rank}. They are analyzed separately.")
    for analysis in ranks:
        notes += _recording_notes(analysis, Path(analysis.sources[0]).name)
    return notes


BUFFER_FIX = (
    "The recorder's buffer for them was full. Record fewer steps: PerfCallback(active=1). Or name a file in "
    "KINETO_CONFIG that contains ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB=1024."
)


def _recording_notes(analysis: RankAnalysis, name: str) -> list[str]:
    notes = []
    problems, breakdown, processor = analysis.problems, analysis.breakdown, analysis.metadata.processor
    if analysis.metadata.device_stopped:
        notes.append(f"{name} lacks device events: times are lower bounds, and shares are left out. {BUFFER_FIX}")
    elif problems.truncated:
        notes.append(f"{name} ends early: its times are lower bounds, and shares are left out.")
    if not breakdown.marked:
        notes.append(f"{name} marks no steps (ProfilerStep#n): the figures are for the whole recording.")
    elif breakdown.averages_cut_steps:
        notes.append(f"{name} holds no complete step: the averages include steps that the recording cut off.")
    settings = analysis.metadata.settings
    if not breakdown.has_device and settings is not None and settings.uuid is not None:
        tool = settings.attached_tool
        notes.append(
            f"{name} holds no work of the GPU that trained. CUPTI, which records it, serves one tool at a time: "
            f"{f'run without {tool}' if tool else 'run without nsys, ncu and other tools'}. The recorder's own error "
            "appears with KINETO_LOG_LEVEL=0. The figures are for the host only."
        )
    elif problems.unread_events:
        notes.append(
            f"{name} holds {counted(problems.unread_events, 'event')} of no known category, in "
            f"{', '.join(problems.unread_in)}. They are not in the figures, which are for the host only."
        )
    elif not breakdown.has_device and drives_device(breakdown):
        why = (
            "The profiler asked for it, as events of its recorder show, but the driver delivered nothing. Allow all "
            "users to profile (https://developer.nvidia.com/ERR_NVGPUCTRPERM), end other profilers such as nsys and "
            "DCGM, and update WSL 2."
            if problems.overhead_events
            else "activities= of the profiler lacks the device, or another profiler used its recorder."
        )
        notes.append(
            f"{name} holds calls to a device but no device work. {why} The figures are for the host only, and whether "
            "the device worked is unknown."
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
    for number, one, several in (
        (problems.repaired_events, "was repaired", "were repaired"),
        (problems.dropped_events, "could not be read", "could not be read"),
        (problems.bad_durations, "has no usable time or duration", "have no usable time or duration"),
    ):
        if number:
            notes.append(f"{name}: {counted(number, 'event')} {one if number == 1 else several}.")
    return notes
