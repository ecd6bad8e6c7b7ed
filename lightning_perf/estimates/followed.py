"""Finds estimates that can be checked: a second run follows one finding of the first run."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from lightning_perf.analysis.comparability import check_comparable
from lightning_perf.analysis.model.workload import Workload
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.errors import ReportError, TraceError
from lightning_perf.findings.conditions import is_busy
from lightning_perf.report.build import analyze
from lightning_perf.report.compared import Compared
from lightning_perf.report.document import PerfReport
from lightning_perf.report.recordings import RecordingExecutor, analyze_recordings
from lightning_perf.run_files.estimates import EstimateOutcome, Method, add_outcomes
from lightning_perf.run_files.report import REPORT_NAME
from lightning_perf.run_files.run_record import RECORD_NAME, RUN_RECORD, FactsAdded, FactValue, RunStarted
from lightning_perf.statistics.values import Estimate

Facts = Mapping[str, FactValue]
"""Facts of a run, by their names in its run record."""

_FOLLOWED_FREELY = (
    "train.seed",
    "train.first_step",
    "train.max_epochs",
    "train.max_steps",
    "train.limit_train_batches",
    "train.limit_val_batches",
    "train.check_val_every_n_epoch",
    "train.val_check_interval",
    "train.log_every_n_steps",
    "train.callbacks",
    "train.loggers",
    "model.initial_weights",
    "data.first_batch",
    "data.manifest",
    "data.length",
    "code.revision",
)
"""Facts that may differ in addition. They affect the length and the result of a run, but hardly the time of a step.

The revision of the code changes with every setting in the code. `check_comparable` finds another model.
"""

_FREE_GROUPS = ("data.val_",)


class Advice(Struct, frozen=True):
    """A change that findings advise.

    Attributes:
        is_followed: Whether the change of the fact's value follows the advice.
        by_sample: Whether the step then holds more samples, so that times are compared per sample.
    """

    name: str
    rules: tuple[str, ...]
    fact: str
    is_followed: Callable[[FactValue, FactValue], bool]
    consequences: tuple[str, ...] = ()
    by_sample: bool = False


def _is_16_bit(value: FactValue) -> bool:
    return "16" in str(value)


def _is_enabled(before: FactValue, after: FactValue) -> bool:
    return not before and bool(after)


def _is_raised(before: FactValue, after: FactValue) -> bool:
    try:
        return float(after or 0) > float(before or 0)
    except ValueError:
        return False


def _is_fused(before: FactValue, after: FactValue) -> bool:
    """Return whether only the implementation of the optimizer changed, to the fused one."""
    was, is_now = (
        [part for part in str(optimizer).split(", ") if not part.startswith("foreach=")]
        for optimizer in (before, after)
    )
    others = [[part for part in parts if not part.startswith("fused=")] for parts in (was, is_now)]
    return "fused=True" in is_now and "fused=True" not in was and others[0] == others[1]


ADVICE: tuple[Advice, ...] = (
    Advice(
        "16-bit precision",
        ("half-precision", "tensor-cores", "cpu-bf16"),
        "train.precision",
        lambda before, after: not _is_16_bit(before) and _is_16_bit(after),
    ),
    Advice(
        "TF32",
        ("tf32-off",),
        "flags.tf32_matmul",
        lambda before, after: before not in (True, "tf32") and after in (True, "tf32"),
        ("flags.tf32_cudnn",),
    ),
    Advice("channels last", ("channels-last", "cpu-channels-last"), "model.channels_last", _is_enabled),
    Advice("fused optimizer", ("unfused-optimizer",), "train.optimizer", _is_fused),
    Advice("more threads", ("cpu-threads",), "device.threads", _is_raised, ("env.OMP_NUM_THREADS",)),
    Advice(
        "more workers",
        ("input-bound",),
        "data.num_workers",
        _is_raised,
        ("data.persistent_workers", "data.prefetch_factor"),
    ),
    Advice("pinned memory", ("pageable-copies",), "data.pin_memory", _is_enabled),
    Advice("torch.compile", ("launch-bound", "small-kernels"), "model.compiled", _is_enabled),
    Advice("cuDNN benchmark", ("cudnn-benchmark",), "flags.cudnn_benchmark", _is_enabled),
    Advice(
        "kept memory",
        ("cpu-page-faults",),
        "env.MALLOC_TRIM_THRESHOLD_",
        _is_enabled,
        ("env.MALLOC_MMAP_MAX_",),
    ),
    Advice("larger batch", ("cpu-overhead", "memory-spare"), "train.batch_size", _is_raised, by_sample=True),
)
"""Every change that a run record shows. Advice without a row, such as on synchronization, changes the user's code."""


RULES = {advice.name: advice.rules for advice in ADVICE}
"""The rules that advise each change."""


class Followed(Struct, frozen=True):
    """The one advice that a run followed.

    Attributes:
        setting: The change, e.g. ``train.precision 32-true → bf16-mixed``.
        time_factor: Factor of the second run's step time that makes both times those of as many samples.
    """

    advice: Advice
    setting: str
    time_factor: float = 1.0


def find_followed(before: Facts, after: Facts) -> Followed | None:
    """Return the advice that the second run followed.

    Returns:
        The advice. ``None`` if no advised setting changed, or if another setting changed too: the gain of two changes
        cannot be divided among them.
    """
    names = {
        name
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name) and name not in _FOLLOWED_FREELY and not name.startswith(_FREE_GROUPS)
    }
    for advice in ADVICE:
        if advice.fact not in names or names - {advice.fact, *advice.consequences}:
            continue
        was, is_now = before.get(advice.fact), after.get(advice.fact)
        if not advice.is_followed(was, is_now):
            return None
        factor = float(was or 1) / float(is_now or 1) if advice.by_sample else 1.0
        return Followed(advice, f"{advice.fact} {_text(was)} → {_text(is_now)}", factor)
    return None


def _text(value: FactValue) -> str:
    return "off" if value is None or value is False else "on" if value is True else str(value)


SIXTEEN_BIT_SHARE = 0.10
"""From this share of its compute in 16 bits on, a recording counts as one of mixed precision."""

PREVIOUS_RUNS = 5
"""Earlier runs in the same log folder that are searched for a finding that a new run followed."""


class ReportedRun(Struct, frozen=True):
    """A run with its report, its run ID or its trace files as its name, and the facts of its run record."""

    report: PerfReport
    name: str
    facts: Facts = field(default_factory=dict)

    @classmethod
    def of(cls, report: PerfReport, folder: Path | None = None) -> ReportedRun:
        """Return the run of a report, with the facts in its folder if there are any."""
        facts: Facts = {}
        run_id = None
        if folder is not None:
            run_id, facts = read_facts(folder)
        # The names of trace files hold their time in nanoseconds, so they differ between runs.
        name = run_id or " ".join(Path(source).name for source in report.sources)
        return cls(report, name, facts)


def run_folder(path: str | Path, report: PerfReport) -> Path | None:
    """Return the folder of the run that a report was made from; ``None`` for a trace without a run's other files."""
    if not Path(path).is_dir() or not report.sources:
        return None
    folder = Path(report.sources[0]).parent
    return folder if any((folder / name).exists() for name in (RECORD_NAME, REPORT_NAME)) else None


def read_facts(folder: Path) -> tuple[str | None, Facts]:
    """Read the run ID and the facts of the run in a folder; ``None`` and no facts if its record cannot be read."""
    try:
        lines = RUN_RECORD.read(folder / RECORD_NAME)
    except TraceError:
        return None, {}
    facts: dict[str, FactValue] = {}
    run_id = None
    for line in lines:
        if isinstance(line, RunStarted):
            run_id = line.run_id
            facts |= line.facts
        elif isinstance(line, FactsAdded):
            facts |= line.facts
    return run_id, facts


def check_pair(before: ReportedRun, after: ReportedRun, method: Method) -> tuple[EstimateOutcome, ...]:
    """Check the estimates of one run against the step time of a later one, unless the machine was busy.

    Step times come from the always-on timer if both runs have it, otherwise from the recorded steps.
    """
    first, second = _lead(before.report), _lead(after.report)
    if first is None or second is None or before.name == after.name or is_busy(second.metadata.processor):
        return ()
    with_facts = bool(before.facts and after.facts)
    facts = (before.facts, after.facts) if with_facts else (_recorded_facts(first), _recorded_facts(second))
    followed = find_followed(*facts)
    if followed is None:
        return ()
    mismatches = {mismatch.aspect for mismatch in check_comparable(first, second).mismatches}
    if mismatches - ({"batch"} if followed.advice.by_sample else set()):
        return ()
    times_ns = _step_times(before.report, after.report, first, second)
    if times_ns is None:
        return ()
    ratio = times_ns[1] / times_ns[0]
    reason = "one run of each gives no interval"
    return check_ratio(
        before,
        followed,
        Estimate(ratio, None, None, 0.95, 1, "one run of each", reason),
        method,
        f"{before.name} → {after.name}",
    )


def check_ratio(
    before: ReportedRun, followed: Followed, ratio: Estimate, method: Method, measurement: str
) -> tuple[EstimateOutcome, ...]:
    """Check the estimates of a run against a measured ratio of step times.

    Args:
        ratio: Step time after the change divided by the one before it, not yet per sample.
    """
    lead = _lead(before.report)
    if lead is None or ratio.value is None or is_busy(lead.metadata.processor):
        return ()
    found = [
        finding
        for finding in before.report.findings
        if finding.kind in followed.advice.rules
        and finding.saving_low_ms is not None
        and finding.saving_high_ms is not None
        and finding.step_ms
    ]
    saved = ratio.map(lambda value: 1 - value * followed.time_factor)
    parameters = before.facts.get("model.parameters")
    counted = f", {parameters:,} parameters" if isinstance(parameters, int) else ""
    network = f"{name}{counted}" if (name := before.facts.get("model.class")) is not None else ""
    processor = lead.metadata.processor
    machine = " and ".join(lead.workload.devices) or (processor.name if processor is not None else None) or ""
    return tuple(
        EstimateOutcome(
            rule=finding.kind,
            setting=followed.setting,
            step_ms=finding.step_ms or 0.0,
            low_ms=finding.saving_low_ms or 0.0,
            high_ms=finding.saving_high_ms or 0.0,
            source=finding.basis,
            method=method,
            measurement=measurement,
            network=network,
            fingerprint=_fingerprint(lead.workload),
            machine=machine,
            versions={
                name.removeprefix("version."): str(value)
                for name, value in before.facts.items()
                if name.startswith("version.") and value is not None
            },
            measured_unix_s=time.time(),
            gain_ms=(finding.step_ms or 0.0) * (saved.value or 0.0),
            gain_low_ms=None if saved.low is None else (finding.step_ms or 0.0) * saved.low,
            gain_high_ms=None if saved.high is None else (finding.step_ms or 0.0) * saved.high,
        )
        for finding in found
    )


def describe_outcomes(outcomes: Sequence[EstimateOutcome]) -> tuple[str, ...]:
    """Return a sentence about each change, e.g. for a note: that of the largest estimate if several rules advise it."""
    largest: dict[str, EstimateOutcome] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.high_ms):
        largest[outcome.setting] = outcome
    return tuple(map(_describe_outcome, largest.values()))


def _describe_outcome(outcome: EstimateOutcome) -> str:
    good = outcome.low_ms <= outcome.gain_ms <= outcome.high_ms
    judged = "a good estimate" if good else "too high" if outcome.gain_ms < outcome.low_ms else "too low"
    gained = f"saved {outcome.gain_ms:.1f} ms" if outcome.gain_ms >= 0 else f"cost {-outcome.gain_ms:.1f} ms"
    return (
        f"Estimate checked: `{outcome.rule}` predicted {outcome.low_ms:.1f} to {outcome.high_ms:.1f} ms per step, and "
        f"{outcome.setting} {gained}: {judged}."
    )


def find_previous(folder: Path) -> Iterator[ReportedRun]:
    """Read the runs before the one in a folder, in the same log folder, the newest first.

    Args:
        folder: The folder of a run, e.g. ``lightning_logs/version_3/perf`` or ``logs/perf_2``.
    """
    folder = folder.resolve()
    stem = folder.name.rstrip("0123456789").removesuffix("_")
    near = [*folder.parent.glob(f"{stem}*/{REPORT_NAME}"), *folder.parent.parent.glob(f"*/{folder.name}/{REPORT_NAME}")]
    dated: dict[Path, float] = {}
    for path in near:
        if path.parent.resolve() != folder:
            with suppress(OSError):
                dated[path] = path.stat().st_mtime
    for path in sorted(dated, key=lambda each: -dated[each])[:PREVIOUS_RUNS]:
        with suppress(OSError, ReportError):
            yield ReportedRun.of(PerfReport.load(path), path.parent)


def save_outcomes(folder: Path, outcomes: Sequence[EstimateOutcome]) -> None:
    """Store outcomes in a folder, if possible: a folder that cannot be written to is no fault of a comparison."""
    if outcomes:
        with suppress(OSError, TraceError):
            folder.mkdir(parents=True, exist_ok=True)
            add_outcomes(folder, outcomes)


def _lead(report: PerfReport) -> RankAnalysis | None:
    lead = None if report.lead is None else report.ranks[report.lead]
    return lead if lead is not None and lead.breakdown.marked and not lead.breakdown.truncated else None


def _step_times(
    before: PerfReport, after: PerfReport, first: RankAnalysis, second: RankAnalysis
) -> tuple[float, float] | None:
    """Return both step times: medians of the always-on timer, or means of the recorded steps."""
    if before.step_times is not None and after.step_times is not None:
        times: tuple[float | None, float | None] = before.step_times.p50_ns, after.step_times.p50_ns
    else:
        times = first.breakdown.wall.mean_ns, second.breakdown.wall.mean_ns
    return (times[0], times[1]) if times[0] and times[1] else None


def _recorded_facts(rank: RankAnalysis) -> dict[str, FactValue]:
    """Return the settings that a recording shows by itself, under the names of a run record."""
    facts: dict[str, FactValue] = {"model.compiled": rank.workload.compiled}
    if rank.arithmetic is not None and rank.arithmetic.compute_ns:
        half_ns = rank.arithmetic.row("fp16").time_ns + rank.arithmetic.row("bf16").time_ns
        half: float | None = half_ns / rank.arithmetic.compute_ns
    else:
        half = _share_of_work(rank, lambda row: row.arithmetic, ("bf16", "fp16"))
    if half is not None:
        facts["train.precision"] = "16 bits" if half >= SIXTEEN_BIT_SHARE else "32 bits"
    if rank.metadata.loader is not None:
        facts["train.batch_size"] = rank.metadata.loader.batch_size
        facts["data.num_workers"] = rank.metadata.loader.workers
        facts["data.pin_memory"] = rank.metadata.loader.pin_memory
        facts["data.persistent_workers"] = rank.metadata.loader.persistent_workers
    if rank.metadata.processor is not None and rank.metadata.processor.trains:
        facts["device.threads"] = rank.metadata.processor.threads
    if rank.optimizer is not None:
        facts["train.optimizer"] = f"{rank.optimizer.name}, fused={rank.optimizer.implementation == 'fused'}"
    if (last := _share_of_work(rank, lambda row: row.layout, ("channels last",))) is not None:
        facts["model.channels_last"] = last > 0.5
    return facts


def _share_of_work(rank: RankAnalysis, key: Callable[..., str | None], values: Sequence[str]) -> float | None:
    """Return the share of a processor's convolutions and products with one of some values of a property."""
    if rank.host_compute is None:
        return None
    products = ("convolution", "convolution backward", "matrix product", "batched product", "recurrent layer")
    kinds = (*products, "attention", "long attention")
    times = [(key(row), row.time_ns) for row in rank.host_compute.work if row.kind in kinds and key(row) is not None]
    total = sum(time_ns for _, time_ns in times)
    return sum(time_ns for value, time_ns in times if value in values) / total if total else None


def _fingerprint(workload: Workload) -> str | None:
    """Hash the layers of a recording: equal for the same model with the same number of micro-batches."""
    if not workload.layers:
        return None
    steps = max(workload.steps, 1)
    layers = sorted(f"{layer.operator} {layer.weight} {layer.calls / steps:.4g}" for layer in workload.layers)
    return hashlib.sha256("\n".join(layers).encode()).hexdigest()[:12]


def diff_runs(
    before: str | Path, after: str | Path, *, store: bool = True, executor: RecordingExecutor = analyze_recordings
) -> Compared:
    """Analyze two recordings and return the changes from one to the other.

    Args:
        store: Whether to store the estimates that this pair checks, in ``estimates.jsonl`` of the second run.
    """
    reports = analyze(before, executor=executor), analyze(after, executor=executor)
    folders = run_folder(before, reports[0]), run_folder(after, reports[1])
    compared = reports[0].diff(reports[1])
    outcomes = check_pair(ReportedRun.of(reports[0], folders[0]), ReportedRun.of(reports[1], folders[1]), "diff")
    if store and folders[1] is not None:
        save_outcomes(folders[1], outcomes)
    return replace(compared, notes=(*compared.notes, *describe_outcomes(outcomes)))
