"""Apply all rules, and check their findings against the whole run: it confirms, narrows or holds back each of them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from statistics import fmean, median
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.analysis.compilation import CompileReport
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.ranks.distributed import Distributed
from lightning_perf.analysis.ranks.whole_fit import RanksOverFit
from lightning_perf.analysis.steps.fit_time import FitTime, MemoryGrowth
from lightning_perf.analysis.steps.step_times import HICCUPS, LEAST_USUAL_STEPS, NOTABLE, StepTimes
from lightning_perf.analysis.trust import Trust
from lightning_perf.findings.conditions import (
    BUSY_WAIT,
    contention,
    distortion,
    is_busy,
    is_oversubscribed,
    with_gpu_health,
)
from lightning_perf.findings.cpu import MIN_PAUSE_SHARE
from lightning_perf.findings.finding import (
    LEADING,
    MIN_SHARE,
    Finding,
    by_saving,
    compile_rule,
    device_rule,
    fit_rule,
    for_inference,
    growth_rule,
    log_rule,
    make_finding,
    ranks_rule,
    rule,
    run_rule,
    severity_of,
)
from lightning_perf.findings.fit import is_compilation
from lightning_perf.findings.loading import MIN_WAIT_SHARE, waits_for_input, workers_wait
from lightning_perf.findings.ranks import SHARED_WAITS
from lightning_perf.findings.savings import loader_of, step_ns
from lightning_perf.findings.steps import one_per_cause, without_collections, without_parts_of_fit
from lightning_perf.findings.worker_time import explain_workers
from lightning_perf.run_files.fit.account import Group
from lightning_perf.run_files.fit.gpu_health import GpuHealth
from lightning_perf.units import format_count, format_duration, format_share

TOPICS = (
    "compilation",
    "conditions",
    "cpu",
    "fit",
    "host",
    "kernels",
    "loading",
    "memory",
    "model",
    "ranks",
    "steps",
)
for topic in TOPICS:
    import_module(f"lightning_perf.findings.{topic}")  # adds its rules

RULE_IDS = frozenset(
    rule_id
    for rules in (rule, run_rule, ranks_rule, log_rule, fit_rule, compile_rule, growth_rule, device_rule)
    for rule_id in rules.by_id
)
"""The IDs of all rules."""


def find(ranks: Iterable[RankAnalysis], distributed: Distributed | None = None) -> tuple[Finding, ...]:
    """Apply every rule to every rank, and those of the run to all ranks together: the most to save first.

    A truncated recording has no findings: its device events are missing, and rules need shares of time. If several
    ranks have the same finding, the one with the most to save is kept. Without an estimate, a finding comes last.
    """
    sound = [analysis for analysis in ranks if not analysis.breakdown.truncated]
    findings = []
    for rule_id, apply in rule.by_id.items():
        judged = [min(sound, key=SHARED_WAITS[rule_id])] if sound and rule_id in SHARED_WAITS else sound
        found = [for_inference(finding, each) for each in judged if (finding := apply(each)) is not None]
        findings += sorted(found, key=by_saving)[:1]
    if distributed is not None:
        findings += run_rule.find(distributed)
    return tuple(sorted(findings, key=by_saving))


def find_in_fit(
    fit: FitTime | None,
    *,
    compilation: CompileReport | None = None,
    growth: MemoryGrowth | None = None,
    gpus: Sequence[GpuHealth] = (),
) -> tuple[Finding, ...]:
    """Apply every rule about a whole fit: the most to save first. Savings are of the fit, not per step."""
    findings = compile_rule.find(compilation) if compilation is not None else []
    if fit is not None:
        # A first step that compiles is the same lost time as the cost of compilation.
        explained = any(finding.kind == "compile-cost" for finding in findings) and is_compilation(fit)
        findings += [found for found in fit_rule.find(fit) if found.kind != "slow-first-step" or not explained]
    if growth is not None:
        findings += growth_rule.find(growth)
    findings += device_rule.find(gpus)
    return tuple(sorted(findings, key=by_saving))


UNLIKE = 2.0
"""Ratio from which shares of the recorded steps do not apply to the run's usual step."""

HOST_PACED = frozenset({"host-work", "launch-bound"})
"""Rules for trainings on a device that a busy host triggers by itself."""

SURE_ON_BUSY_MACHINES = frozenset({"cpu-pauses", "debug-settings", "padding", "thread-contention"})
"""Rules that a busy machine does not mislead: the cost in each recorded step, a setting that is on, counted tokens, and
the busy cores themselves."""

SHARES = frozenset({"padding", "thread-contention"})
"""Rules with a saving that is a share of the step, of the recorded ones and of the usual one."""

PROBED = frozenset(
    {"cpu-bf16", "cpu-channels-last", "cpu-overhead", "cpu-threads", "launch-bound", "unfused-optimizer"}
)
"""Rules with savings that a probe measures. It alternates between settings, so other load hits all of them alike."""

LEAST_STRETCH_STEPS = 10
"""Steps of a run that are needed to know its usual step."""

LEAST_RECORDED = 3
"""Recorded steps that are needed to identify outliers."""

CATEGORIES = {
    "allocator": ("runtime_alloc", "asked the driver for memory"),
    "exposed-communication": ("communication", "communicated"),
    "host-work": ("host_other", "ran Python"),
    "input-bound": ("input", "waited for data"),
    "launch-bound": ("kernel_launch", "launched kernels"),
    "pageable-copies": ("memcpy_h2d", "copied to the device"),
    "sync-points": ("runtime_sync", "synchronized"),
}
"""The category of the step time that each rule is about, and its steps' doing. Other rules have no single category."""


class HeldBack(Struct, frozen=True):
    """A finding of the recorded steps that the whole run does not confirm.

    Attributes:
        finding: The finding, with the figures of the recorded steps.
        reason: Why it is held back, in one or two sentences.
    """

    finding: Finding
    reason: str


class Stretch(Struct, frozen=True):
    """The recorded steps were unlike those of the run that were not recorded.

    Attributes:
        ratio: The recorded step divided by the usual step.
        kind: ``fast`` or ``slow``.
    """

    recorded_ns: float
    usual_ns: float
    ratio: float
    kind: str


class Checked(Struct, frozen=True):
    """The findings after the check against the whole run.

    Attributes:
        findings: Confirmed findings, the most to save first, with the figures of the run if it has any.
        notes: Outliers: findings that come from one or two recorded steps.
        headline: A warning before the verdict: the machine was busy, or the stretch unusual. Usually empty.
    """

    findings: tuple[Finding, ...]
    held_back: tuple[HeldBack, ...] = ()
    notes: tuple[str, ...] = ()
    headline: str = ""


def stretch(lead: RankAnalysis | None, run: StepTimes | None, trusted: Trust | None) -> Stretch | None:
    """Return how the recorded steps differ from those of the run; None if they do not, or the profiler slows them."""
    if lead is None or run is None or run.only_profiled or not lead.breakdown.marked or not run.p50_ns:
        return None
    if run.steps < LEAST_STRETCH_STEPS:
        return None
    walls = [step.wall_ns for step in lead.breakdown.steps if step.complete]
    if not walls:
        return None
    recorded_ns = float(median(walls))
    ratio = recorded_ns / run.p50_ns
    windows = trusted.windows if trusted is not None else ()
    overheads = [each.overhead.estimate for each in windows if each.overhead is not None and not each.window.capture]
    if ratio >= NOTABLE and overheads and max(overheads) < NOTABLE:
        return Stretch(recorded_ns, run.p50_ns, ratio, "slow")
    return Stretch(recorded_ns, run.p50_ns, ratio, "fast") if 0 < ratio <= 1 / NOTABLE else None


def check_findings(
    found: Sequence[Finding],
    ranks: Sequence[RankAnalysis],
    *,
    run: StepTimes | None = None,
    run_rank: int | None = None,
    other_ranks: Mapping[int, StepTimes] = MappingProxyType({}),
    lead: RankAnalysis | None = None,
    trusted: Trust | None = None,
    fit: FitTime | None = None,
    fit_findings: Sequence[Finding] = (),
    over_fit: RanksOverFit | None = None,
    gpus: Sequence[GpuHealth] = (),
    path: str = "PATH",
) -> Checked:
    """Check the findings of the recorded steps against the whole run.

    Estimates made while others competed for the cores are held back. Waits for data are judged by the step log, which
    measured them in every step. One or two slow recorded steps count as outliers. Recorded steps that are much faster
    or slower than the run's are not representative.

    Args:
        run: The step log of the run; None for a recording without one.
        other_ranks: The step logs of other ranks, at least of those that findings are about.
        lead: The rank that the report describes first.
        fit: The account of the fit, which shows the work of long steps.
        fit_findings: The findings about the whole fit. One of them may have the same cause.
        over_fit: The step logs of all ranks, which judge stragglers better than the recorded steps.
        gpus: The health of the ranks' GPUs, which is shown where one of the ranks is late.
        path: The run's folder, or the trace.
    """
    usable = _usable(run)
    analyses = {analysis.rank: analysis for analysis in ranks}
    place = stretch(lead, usable, trusted)
    findings: list[Finding] = ranks_rule.find(over_fit) if over_fit is not None else []
    held_back: list[HeldBack] = []
    notes: list[str] = []
    if over_fit is not None and (over_fit.whole_work or findings):
        if not findings:
            reason = f"Over {format_count(over_fit.steps)} steps of the fit, no rank holds up the others all the time."
            held_back += [HeldBack(finding, reason) for finding in found if finding.kind == "straggler"]
        found = [finding for finding in found if finding.kind != "straggler"]
    for finding in found:
        analysis = analyses.get(finding.rank, lead)
        own = usable if _same_rank(finding.rank, run_rank, ranks) else _usable(other_ranks.get(finding.rank or 0))
        reason = distortion(analysis) if analysis is not None and finding.kind not in LEADING else ""
        if reason:
            held_back.append(HeldBack(finding, reason))
            continue
        judged = finding if analysis is None else _judge(finding, analysis, own, place, path, fit)
        if isinstance(judged, Finding):
            findings.append(judged)
        elif isinstance(judged, HeldBack):
            held_back.append(judged)
        else:
            notes.append(judged)
    if usable is not None and not any(finding.kind == "input-bound" for finding in found):
        missed = _missed_waits(ranks, usable, run_rank)
        if missed is not None:
            findings.append(missed)
        elif lead is not None and _same_rank(lead.rank, run_rank, ranks):
            waits = _RunWaits.of(lead, usable)
            notes += [waits.at_starts] if waits.only_at_starts else []
    if usable is not None:
        findings = one_per_cause([*findings, *log_rule.find(usable, lead, fit)], usable, lead, fit_findings)
    findings = without_parts_of_fit(without_collections(findings, fit, fit_findings), fit, fit_findings)
    findings = [_with_busy_cores(finding, analyses.get(finding.rank, lead)) for finding in findings]
    findings = [with_gpu_health(finding, gpus) for finding in findings]
    busy = contention(lead.metadata.processor) if lead is not None else ""
    headline = f"{busy} {_headline(place)}".strip()
    held_back.sort(key=lambda held: held.finding.kind not in PROBED)  # the verdict names the first one
    return Checked(tuple(sorted(findings, key=by_saving)), tuple(held_back), tuple(notes), headline)


def _usable(run: StepTimes | None) -> StepTimes | None:
    return run if run is not None and not run.only_profiled and run.steps >= LEAST_USUAL_STEPS else None


def _with_busy_cores(finding: Finding, analysis: RankAnalysis | None) -> Finding:
    """Lower the estimate for worker processes to zero if the cores that they need are busy."""
    if finding.kind != "input-bound" or "num_workers" not in finding.action:
        return finding
    processor = analysis.metadata.processor if analysis is not None else None
    if processor is None or not is_busy(processor):
        return finding
    worker = analysis.worker if analysis is not None else None
    waits_for_cores = worker is not None and (worker.core_wait or 0.0) >= BUSY_WAIT
    if workers_wait(processor) and explain_workers(worker, 0.0) is not None and not waits_for_cores:
        return finding  # the time for which they wait for the training is measured, and short
    warning = (
        "The machine was busy, so workers also wait for the training. Measure them: lightning-perf data PKG:NAME."
        if workers_wait(processor)
        else "The cores are busy. More worker processes compete for them and may make the training slower."
    )
    return replace(finding, saving_low_ms=0.0, evidence=(*finding.evidence, warning))


def _same_rank(rank: int | None, run_rank: int | None, ranks: Sequence[RankAnalysis]) -> bool:
    return rank is None or run_rank is None or rank == run_rank or len(ranks) == 1


def _judge(
    finding: Finding,
    analysis: RankAnalysis,
    run: StepTimes | None,
    place: Stretch | None,
    path: str,
    fit: FitTime | None,
) -> Finding | HeldBack | str:
    if finding.kind == "cpu-pauses" and (reason := _not_of_training(finding, analysis, run, fit)):
        return HeldBack(finding, reason)
    if finding.kind in SHARES and run is not None:
        return _of_usual_step(finding, analysis, run)
    if finding.saving_high_ms is None or finding.kind in SURE_ON_BUSY_MACHINES:
        return finding
    if finding.kind == "input-bound" and run is not None:
        return _waits(finding, analysis, run)
    processor = analysis.metadata.processor
    paced = processor is not None and (processor.trains or finding.kind in HOST_PACED)
    competes = paced and finding.kind != "input-bound"
    if processor is not None and competes and is_oversubscribed(processor):
        enough = f"torch.set_num_threads({processor.cores or processor.cpus})"
        return HeldBack(finding, f"Estimated on oversubscribed cores. Use fewer threads: {enough}.")
    if place is not None and run is not None and max(place.ratio, 1 / place.ratio) >= UNLIKE:
        reason = (
            f"The recorded steps took {format_duration(place.recorded_ns)}, the run's median step "
            f"{format_duration(place.usual_ns)}, so their shares do not apply to the usual step. Record other steps: "
            "PerfCallback(skip_first=…, repeat=3)."
        )
        return HeldBack(finding, reason)
    if competes and is_busy(processor) and finding.basis != "probed":
        instead = (
            f"A probe measures it all the same: lightning-perf analyze {shlex.quote(path)} --probe."
            if finding.kind in PROBED
            else "Record again on a quiet machine."
        )
        return HeldBack(finding, f"Estimated while the machine was busy. {instead}")
    return _without_hiccups(finding, analysis, run)


def _not_of_training(finding: Finding, analysis: RankAnalysis, run: StepTimes | None, fit: FitTime | None) -> str:
    """Return why pauses are likely not to be of the training: its steps are shorter, or its thread had no core."""
    pauses_ns = 1e6 * (finding.saving_high_ms or 0.0)
    if run is not None and pauses_ns > run.p50_ns:
        return (
            f"The run's median step takes {format_duration(run.p50_ns)} in all, so it has no such pauses. The recorded "
            "steps lost their core, or the profiler held them up."
        )
    if run is None and fit is not None and fit.steps and finding.rank in (None, fit.rank):
        # In a fit of a few steps all are recorded, with the start of the record and of the profiler.
        step_ns = sum(fit.group(name).time_ns for name in IN_STEPS) / fit.steps
        if pauses_ns > step_ns:
            return (
                f"Without the cost of PerfCallback itself, the fit's steps take {format_duration(step_ns)} on average, "
                "so they have no such pauses. Train for more steps."
            )
    return _without_core(finding, analysis)


IN_STEPS: tuple[Group, ...] = ("first step", "training steps", "callbacks", "logging", "checkpoints")
"""Groups of a fit's account that are in its steps, or may be."""


def _without_core(finding: Finding, analysis: RankAnalysis) -> str:
    """Return why waits for a core may be all of the pauses; empty if they are longer, or the thread slept."""
    processor = analysis.metadata.processor
    if processor is None or processor.core_wait is None or processor.core_wait < BUSY_WAIT or not finding.step_ms:
        return ""
    share = (finding.saving_high_ms or 0.0) / finding.step_ms
    asleep = max(0.0, 1 - processor.core_wait - (1.0 if processor.thread_cpu is None else processor.thread_cpu))
    if max(share - processor.core_wait, asleep) >= MIN_PAUSE_SHARE:
        return ""
    return (
        f"The training thread waited for a core for {format_share(processor.core_wait)} of the time, which looks the "
        "same. Record again on a quiet machine."
    )


def _of_usual_step(finding: Finding, analysis: RankAnalysis, run: StepTimes) -> Finding:
    """Return a finding with the same shares of the run's median step: recorded steps may take several times as long."""
    if finding.saving_low_ms is None or finding.saving_high_ms is None or not step_ns(analysis):
        return finding
    step_ms = run.p50_ns / 1e6
    factor = run.p50_ns / step_ns(analysis)
    low_ms, high_ms = factor * finding.saving_low_ms, factor * finding.saving_high_ms
    return replace(finding, saving_low_ms=low_ms, saving_high_ms=high_ms, step_ms=step_ms)


def _waits(finding: Finding, analysis: RankAnalysis, run: StepTimes) -> Finding | HeldBack | str:
    """Judge waits for data by the step log, as far as no device work hides them."""
    waits = _RunWaits.of(analysis, run)
    recorded = analysis.breakdown.category("input").share or 0.0
    hiccup = _hiccup(finding, analysis)
    if waits.only_at_starts:
        return waits.at_starts
    if waits.steady < MIN_WAIT_SHARE:
        if waits.share >= MIN_WAIT_SHARE:
            return f"{waits.text}, but {waits.without}: an outlier."
        if hiccup is not None:
            return f"{hiccup.text} {waits.text}: an outlier."
        reason = (
            f"{waits.text}, {format_share(recorded)} only in the {analysis.breakdown.averaged_steps} recorded steps."
        )
        return HeldBack(finding, reason)
    judged = waits.judge(analysis)
    if judged is None:
        return finding
    evidence = f"{waits.said} The {analysis.breakdown.averaged_steps} recorded steps waited {format_share(recorded)}."
    return replace(judged, evidence=(*judged.evidence, evidence))


def _input_bound(analysis: RankAnalysis, wait_ns: float, step_ns: float) -> Finding | None:
    problem = waits_for_input(analysis, wait_ns, step_ns)
    if problem is None:
        return None
    return make_finding("input-bound", problem, whole_ns=step_ns, rank=analysis.rank)


class _RunWaits(NamedTuple):
    """The waits for data of a run's steps, as far as no device work hides them.

    Attributes:
        share: Their share of the steps' time.
        steady: The same without the longest waits.
        few: Whether most of the waiting is in the longest waits, so that the mean step is not the usual one.
        after_starts: The share without the longest waits at the starts of epochs.
    """

    run: StepTimes
    share: float
    steady: float
    few: bool
    after_starts: float

    @classmethod
    def of(cls, analysis: RankAnalysis, run: StepTimes) -> _RunWaits:
        exposed, loading = 1.0, analysis.loading
        if analysis.breakdown.has_device and loading is not None and loading.fetch_ns:
            waited_ns = (analysis.breakdown.category("input").mean_ns or 0.0) * max(loading.steps, 1)
            exposed = min(1.0, waited_ns / loading.fetch_ns)
        share, steady = run.data_wait_share, run.data_wait_share_steady
        after = exposed * _without_starts(analysis, run)
        if steady is None or run.mean_steady_ns is None:
            return cls(run, exposed * share, exposed * share, False, after)
        steady_ns = steady * run.mean_steady_ns * (run.steps - HICCUPS)
        return cls(run, exposed * share, exposed * steady, steady_ns < share * run.total_ns / 2, after)

    @property
    def text(self) -> str:
        """The share over all steps, as the beginning of a sentence."""
        return f"Over the run's {format_count(self.run.steps)} steps the wait is {format_share(self.share)}"

    @property
    def only_at_starts(self) -> bool:
        """Whether a run waits at the starts of its epochs only."""
        return self.after_starts < MIN_WAIT_SHARE <= self.share

    @property
    def at_starts(self) -> str:
        """A sentence for waits that are nearly all at the starts of epochs."""
        rest = format_share(self.after_starts)
        return (
            f"{self.text}, nearly all of it in the first steps of an epoch, while each worker makes its first batch. "
            f"The other steps wait {rest}. Longer epochs wait less often, and cheaper batches for less time."
        )

    @property
    def without(self) -> str:
        """The share without the longest waits."""
        return f"{format_share(self.steady)} without the {HICCUPS} longest waits"

    @property
    def said(self) -> str:
        """The shares that count, as a sentence."""
        if not self.few:
            return f"{self.text}."
        longest = max(self.run.outliers, key=lambda step: step.data_wait_ns, default=None)
        place = f" The longest is {format_duration(longest.data_wait_ns)}, in step {longest.step}." if longest else ""
        return f"{self.text}, and {self.without}, which the estimate leaves out.{place}"

    def judge(self, analysis: RankAnalysis) -> Finding | None:
        """Return the finding by the run's mean step, or by that without the longest waits if they dominate it."""
        share, step_ns = self.share, float(self.run.mean_ns)
        if self.few and self.run.mean_steady_ns is not None:
            share, step_ns = self.steady, self.run.mean_steady_ns
        return _input_bound(analysis, share * step_ns, step_ns)


def _without_starts(analysis: RankAnalysis, run: StepTimes) -> float:
    """Return the share of waits in the steps of a run without the outliers in which its workers begin an epoch."""
    facts, loading = loader_of(analysis), analysis.loading
    if not facts.workers or not facts.batches_per_epoch or loading is None:
        return run.data_wait_share
    batches = max(loading.fetches, 1) / max(loading.steps, 1)  # of a step
    begun = [step for step in run.outliers if step.step * batches % facts.batches_per_epoch < facts.workers]
    waited_ns = run.data_wait_share * run.total_ns - sum(step.data_wait_ns for step in begun)
    return max(0.0, waited_ns) / max(run.total_ns - sum(step.step_ns for step in begun), 1)


def _missed_waits(ranks: Sequence[RankAnalysis], run: StepTimes, run_rank: int | None) -> Finding | None:
    """Find waits of the run that the recorded steps do not show. On a device they might be hidden and are left out."""
    for analysis in ranks:
        if analysis.breakdown.truncated or analysis.breakdown.has_device or not analysis.breakdown.marked:
            continue
        if not _same_rank(analysis.rank, run_rank, ranks):
            continue
        waits = _RunWaits.of(analysis, run)
        if waits.only_at_starts or min(waits.share, waits.steady) < MIN_WAIT_SHARE:
            continue
        found = waits.judge(analysis)
        if found is not None:
            recorded = analysis.breakdown.category("input").share
            evidence = f"{waits.said} The recorded steps hardly show it ({format_share(recorded)})."
            return replace(found, evidence=(*found.evidence, evidence))
    return None


class _Hiccup(NamedTuple):
    """The time of a finding in the recorded steps, if one or two of them have most of it, and a sentence about them."""

    mean_ns: float
    median_ns: float
    wall_ns: float
    text: str


def _hiccup(finding: Finding, analysis: RankAnalysis) -> _Hiccup | None:
    """Return how few recorded steps have most of a finding's time; None if it is spread over all of them."""
    complete = [place for place, step in enumerate(analysis.breakdown.steps) if step.complete]
    if finding.kind not in CATEGORIES or len(complete) < LEAST_RECORDED:
        return None
    category, did = CATEGORIES[finding.kind]
    per_step_ns = analysis.breakdown.category(category).per_step_ns
    if per_step_ns is None:
        return None
    times_ns = sorted((per_step_ns[place] for place in complete), reverse=True)
    mean_ns, median_ns = fmean(times_ns), float(median(times_ns))
    most = min(HICCUPS, (len(times_ns) - 1) // 2)
    if not mean_ns or fmean(times_ns[most:]) >= mean_ns / 2:
        return None
    few = sum(time_ns > 2 * median_ns for time_ns in times_ns[:most]) or 1
    text = (
        f"{few} of the {len(times_ns)} recorded steps {did} for {format_duration(sum(times_ns[:few]))}"
        f"{' together' if few > 1 else ''}, the others for {format_duration(median_ns)} each."
    )
    wall_ns = float(median(analysis.breakdown.steps[place].wall_ns for place in complete))
    if analysis.usual is not None:
        wall_ns = min(wall_ns, analysis.usual.step_ns)
    return _Hiccup(mean_ns, median_ns, wall_ns, text)


def _without_hiccups(finding: Finding, analysis: RankAnalysis, run: StepTimes | None) -> Finding | str:
    """Judge a finding by the median recorded step if one or two steps dominate its mean."""
    found = _hiccup(finding, analysis)
    if found is None:
        return finding
    factor = found.median_ns / found.mean_ns
    low_ms, high_ms = (finding.saving_low_ms or 0.0) * factor, (finding.saving_high_ms or 0.0) * factor
    waits = finding.kind == "input-bound"
    if high_ms * 1e6 < MIN_SHARE * found.wall_ns or (waits and found.median_ns < MIN_WAIT_SHARE * found.wall_ns):
        rest = ""
        if run is not None and run.total_ns:
            share = format_share(run.outlier_excess_ns / run.total_ns)
            rest = f" Slow steps take {share} of the run's time."
        return f"{found.text} The median step has {format_duration(found.median_ns)} of it: an outlier.{rest}"
    said = f"{found.text} The saving is that of the median step."
    judged = _input_bound(analysis, found.median_ns, found.wall_ns) if waits else None
    if judged is not None:
        return replace(judged, evidence=(*judged.evidence, said))
    return replace(
        finding,
        evidence=(*finding.evidence, said),
        severity=severity_of(low_ms, high_ms, found.wall_ns / 1e6),
        saving_low_ms=low_ms,
        saving_high_ms=high_ms,
        step_ms=found.wall_ns / 1e6,
    )


def _headline(place: Stretch | None) -> str:
    if place is None:
        return ""
    return f"Recorded in an unusually {place.kind} stretch of the run."
