"""The parts of a report's page, with those of its first view: verdict, findings, key figures, captures and traces."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lightning_perf.analysis.kernels.arithmetic import Arithmetic
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.trust import Trust, WindowTrust
from lightning_perf.findings.finding import Finding
from lightning_perf.report.captured import Captured
from lightning_perf.report.labels import is_amd, matrix_units
from lightning_perf.report.sections.device import gpu_health_section, mfu_texts
from lightning_perf.report.sections.fit_time import compilation_section, fit_time_section, step_times_section
from lightning_perf.report.sections.precision import (
    bad_run_summary,
    forecast_section,
    fp8_section,
    precision_pages,
    shadow_blocks,
)
from lightning_perf.report.sections.rank import rank_parts
from lightning_perf.report.sections.ranks import over_fit_section, ranks_parts
from lightning_perf.report.sections.report import (
    STYLES,
    capture_changes,
    device_line,
    held_back_blocks,
    of_rank,
    rule_link,
    trust_block,
)
from lightning_perf.report.sections.work import (
    FEWEST_ROWS,
    MOST_ROWS,
    other_notes,
    out_of_memory_blocks,
    out_of_memory_summary,
)
from lightning_perf.report.verdict import rests_on_first, saving_range, saving_text
from lightning_perf.show.blocks import (
    EVERY_ROW,
    Block,
    Card,
    Cell,
    Details,
    Field,
    Figure,
    Figures,
    Heading,
    Line,
    Listing,
    Span,
    note,
    tabulate,
)
from lightning_perf.statistics.exact import Ratio
from lightning_perf.units import (
    NOT_AVAILABLE,
    counted,
    format_bytes,
    format_duration,
    format_flop_rate,
    format_rate,
    format_ratio,
    format_share,
)

if TYPE_CHECKING:
    from lightning_perf.report.document import PerfReport

UNKNOWN_SHARE = 0.5
"""From this share of compute on that may run on Tensor Cores, their share is unknown."""

_OF_OVERVIEW = (
    "attention-math compile-cost cudagraph-skips gc-pauses graph-breaks growing-steps long-validation padding "
    "periodic-steps recompiles recompute slow-callback slow-checkpoints slow-first-step slow-logger throttled "
    "worker-memory worker-restarts"
)

VIEWS = {
    "timeline": (
        "the timeline",
        "cold-start cpu-page-faults cpu-pauses debug-settings host-work input-bound stop-flags",
    ),
    "operators": ("the operators", "cpu-bf16 cpu-channels-last cpu-overhead cpu-threads thread-contention"),
    "kernels": (
        "the kernels",
        "channels-last cudnn-benchmark pageable-copies small-kernels tensor-cores tf32-off unfused-optimizer",
    ),
    "launches": ("launches and idle time", "launch-bound queued-stalls sync-points"),
    "memory": (
        "the memory",
        "activations allocator fragmentation leak memory-full memory-growth memory-spare optimizer-state",
    ),
    "distributed": ("the ranks", "data-parallel exposed-communication imbalance straggler"),
    "precision": ("the precision", "autocast-tax half-precision"),
    "overview": ("the overview", _OF_OVERVIEW),
}
"""The view with the figures behind the findings of each rule."""

_ARGUMENTS = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_CODE = re.compile(rf"[A-Za-z_][\w.]*{_ARGUMENTS}|\b[A-Za-z_]+(?:\.[a-z_]+)*=[\w\"'.]*[\w\"']")
"""Calls and settings in a sentence, as ``DataLoader(…, num_workers=4)``."""


PAGES: dict[str, Callable[[Any], Iterable[Block]]] = {
    "fit_time": fit_time_section,
    "compilation": compilation_section,
    "step_times": step_times_section,
    "fp8": functools.partial(fp8_section, top=EVERY_ROW),
    "shadow": lambda drift: (
        Heading("Shadow steps in FP32", definition="shadow-step"),
        *shadow_blocks(drift, EVERY_ROW),
    ),
    "forecast": functools.partial(forecast_section, top=EVERY_ROW),
}
"""Parts of the page with the names of the fields of a report that they show."""


def report_parts(report: PerfReport) -> dict[str, Iterable[Block]]:
    """Return the blocks of each part of a report's page. The name of a part of one rank ends with the rank's row."""
    parts = {**_overview(report), **ranks_parts(report)}
    if report.trust is not None:
        parts["trust"] = [trust_block(report.trust)]
        parts["windows"] = _windows(report.trust) if report.trust.windows else []
    if report.over_fit is not None:
        parts["over_fit"] = over_fit_section(report.over_fit, report.gpu_health)
    if report.gpu_health:
        parts["gpu_health"] = gpu_health_section(report.gpu_health)
    if report.out_of_memory:
        parts["out_of_memory"] = out_of_memory_blocks(report.out_of_memory)
    if report.precision is not None:
        parts |= precision_pages(report.precision)
    for name, page in PAGES.items():
        if (shown := getattr(report, name)) is not None:
            parts[name] = of_rank(report, getattr(shown, "rank", None), page(shown))
    if not report.ranks:
        parts["missing.-1"] = _missing(report, None)
    most = max(FEWEST_ROWS, MOST_ROWS // max(len(report.ranks), 1))
    for row, rank in enumerate(report.ranks):
        parts[f"summary.{row}"] = _summary(report, rank)
        parts[f"missing.{row}"] = _missing(report, rank)
        parts |= {f"{name}.{row}": blocks for name, blocks in rank_parts(rank, most).items()}
    return parts


UNRECORDED = {
    "timeline": "there is no timeline",
    "operators": "there are no operators",
    "kernels": "there are no kernels",
    "modules": "there are no modules",
    "memory": "memory was not recorded",
    "launches": "there are no launches",
    "distributed": "there are no ranks to compare",
}
"""The data that each view lacks if no step was profiled."""


def _missing(report: PerfReport, rank: RankAnalysis | None) -> Iterator[Line]:
    """Yield why each view has nothing to show, with the view as the label. Text between backticks can be copied."""
    whole = {"memory": bool(report.out_of_memory), "distributed": report.over_fit is not None}
    if rank is None:
        reasons = {view: f"No step was profiled, so {what}." for view, what in UNRECORDED.items()}
    else:
        reasons = dict(_missing_of_rank(report, rank))
    known = report.precision or report.forecast or report.shadow or report.fp8
    if not known and (rank is None or not (rank.amp_gain or (rank.autocast is not None and rank.autocast.count))):
        reasons["precision"] = (
            "This run has no record of its precision, because a trace does not contain the loss scale or gradients. "
            "Train with `PerfCallback(precision=…)` and analyze the run's folder to see the loss scale, overflows and "
            "underflow by layer."
        )
    yield from (Line(reason, label=view) for view, reason in reasons.items() if not whole.get(view))


def _missing_of_rank(report: PerfReport, rank: RankAnalysis) -> Iterator[tuple[str, str]]:
    covers, world = "because it covers the host only", rank.metadata.world_size or 1
    if rank.operators is None or not rank.operators.rows:
        yield "operators", "This recording has no operators. Record with `ProfilerActivity.CPU`."
    if not rank.breakdown.has_device:
        yield "kernels", f"This recording has no device work, {covers}. The view Operators has the times."
        yield "launches", f"This recording has no device work, {covers}. There are no launches and no idle device."
    elif rank.kernels is None or not rank.kernels.rows:
        yield "kernels", "No device work starts in the averaged steps."
    if rank.modules is None or not rank.modules.rows:
        record = "`PerfCallback(with_stack=True)` or `torch.profiler.profile(with_stack=True)`"
        yield "modules", f"This recording does not name modules. Record with {record}."
    if rank.memory is None:
        yield "memory", "This recording has no allocator events. Record with `profile_memory=True`."
    if len(report.ranks) < 2 and rank.communication is None:
        one = f"This recording is from one of {world} ranks and has no collectives. To compare the ranks, analyze the"
        several = f"{one} folder with the traces of all of them."
        yield "distributed", several if world > 1 else "The run has one rank, and no collective ran in it."


def _overview(report: PerfReport) -> dict[str, Iterable[Block]]:
    """Return the blocks of the parts of the first view that are about the whole report."""
    first = int(rests_on_first(report.verdict, report.findings))
    title = "More findings" if first else "Findings"
    found: dict[str, Iterable[Block]] = {
        "verdict": _verdict(report),
        "notes": map(note, other_notes(report.notes, report.out_of_memory)),
        "findings": _findings(title, "finding", report, report.findings[first:], first + 1),
        "fit_findings": _findings(
            "Findings of the whole fit",
            "time-of-the-whole-fit",
            report,
            report.fit_findings,
            len(report.findings) + 1,
        ),
        "captures": _captures(report.captures),
    }
    if report.held_back:
        found["held_back"] = held_back_blocks(report.held_back)
    if report.sources:
        heading = Heading("Traces", aside=f"made by lightning_perf {report.tool_version}")
        found["sources"] = [heading, Listing(tuple(Line((Span(source, "command"),)) for source in report.sources))]
    return found


def _verdict(report: PerfReport) -> Iterator[Block]:
    """Yield the verdict. If it rests on the first finding, that one is shown in full, without repeating its text."""
    verdict = report.verdict
    yield from bad_run_summary(report.precision)
    yield from out_of_memory_summary(report.out_of_memory)
    yield Line(verdict.where, label="Where", label_style="strong")
    if not rests_on_first(verdict, report.findings):
        yield Line(verdict.why, label="Why", label_style="strong")
        yield Line(verdict.next, "good", label="Next", label_style="strong")
        return
    before = verdict.why.partition(report.findings[0].title)[0]
    if before.strip():
        yield Line(before.strip(), label="Why", label_style="strong")
    yield _card(report, report.findings[0], 1, folded=False)


def _findings(
    title: str, definition: str, report: PerfReport, findings: Sequence[Finding], first: int
) -> Iterator[Block]:
    if findings:
        yield Heading(title, definition=definition)
        yield from (_card(report, finding, number) for number, finding in enumerate(findings, start=first))


def _card(report: PerfReport, finding: Finding, number: int, *, folded: bool = True) -> Card:
    lead = None if report.lead is None else report.ranks[report.lead]
    several = lead is not None and (lead.metadata.world_size or 1) > 1
    warning = [Line(finding.warning, "warning")] if finding.warning else []
    whole, blocks = finding.step_ms, [*warning, *map(Line, finding.evidence), _action(finding.action)]
    summary = ""
    if finding.saving_low_ms is not None and finding.saving_high_ms is not None:
        ends = (finding.saving_low_ms / whole, finding.saving_high_ms / whole) if whole else None
        blocks.append(Line(saving_text(finding, lead).removesuffix("."), "strong", range=ends))
        blocks += [Line(finding.model, "quiet")] if finding.model else []
        summary = f"saves {saving_range(finding, lead)}"
    rank = next((row for row, each in enumerate(report.ranks) if each.rank == finding.rank), None)
    view, words = next(
        ((name, text) for name, (text, rules) in VIEWS.items() if finding.kind in rules.split()), ("", "")
    )
    state = f"#view={view}{'' if rank is None else f'&rank={rank}'}"
    blocks.append(Line((*((Span(f"See {words}", link=state), " ") if view else ()), rule_link(finding))))
    aside = f"rank {finding.rank}" if several and finding.rank is not None else ""
    title, summary = f"{number}. {finding.title}", (summary or " ") if folded else ""
    return Card(title, finding.severity, STYLES[finding.severity], tuple(blocks), aside, summary)


def _action(text: str) -> Line:
    """Return the fix of a finding, its calls and settings as code."""
    spans: list[str | Span] = [Span("Fix: ", "strong")]
    start = 0
    for found in _CODE.finditer(text):
        spans += [text[start : found.start()], Span(found.group(), "command")]
        start = found.end()
    return Line((*spans, text[start:]), "good")


def _summary(report: PerfReport, rank: RankAnalysis) -> Iterator[Block]:
    """Yield where one rank was recorded, and its key figures."""
    times, efficiency = rank.breakdown, rank.efficiency
    devices = efficiency.devices if times.has_device and efficiency is not None else ()
    device = devices[0] if devices else None
    which = f"device {device.ordinal} of {len(devices)}" if device is not None and len(devices) > 1 else ""
    host = "" if times.has_device else "Recorded on the host only: "
    yield Line(f"{host}{device_line(report, rank)}", "quiet")
    figures = [
        _step_time(report, rank),
        Figure("Device busy", format_share(device.busy if device else None), which, "busy"),
        Figure(
            f"{'CU' if is_amd(rank.metadata) else 'SM'} efficiency",
            format_share(device.sm_efficiency if device else None),
            which,
            "sm-efficiency",
        ),
        Figure("Occupancy", format_share(device.occupancy if device else None), which, "occupancy"),
        Figure(matrix_units(rank.metadata), *_tensor_cores(rank.arithmetic), "tensor-cores"),
    ]
    if efficiency is not None:
        covered, (mfu, *facts) = efficiency.flops_coverage, mfu_texts(efficiency)
        part = "" if covered is None or covered >= 1 else f"covers {format_share(covered)} of product time"
        figures.append(Figure("FLOP/s", format_flop_rate(efficiency.flops_per_s), part, "flops"))
        figures.append(_mfu(report, rank, mfu, facts))
    peak = next((each for each in rank.memory.devices if each.device is not None), None) if rank.memory else None
    if peak is not None:
        whole = f"of {format_bytes(peak.total_bytes)}" if peak.total_bytes else "" if peak.absolute else "at least"
        figures.append(Figure("Peak memory", format_bytes(peak.peak_allocated_bytes), whole, "peak-memory"))
    if report.step_times is not None:
        tokens = report.step_times.tokens_per_second
        rate = format_rate(report.step_times.samples_per_second, "samples")
        more = format_rate(tokens, "tokens") if tokens else ""
        figures.append(Figure("Throughput", rate, more, "throughput"))
    yield Figures(tuple(figures))
    if efficiency is not None and efficiency.mfu is None and efficiency.mfu_missing and times.has_device:
        yield Line(f"No MFU: {efficiency.mfu_missing}.", "quiet")


def _mfu(report: PerfReport, rank: RankAnalysis, recorded: str, facts: list[str]) -> Figure:
    """Return the MFU of the run, if it is known, else that of the recorded steps."""
    usual = report.step_times.of_rank(rank.rank) if report.step_times is not None else None
    if usual is not None and usual.mfu is not None:
        return Figure("MFU", format_share(usual.mfu), ", ".join([f"{recorded} in recorded steps", *facts]), "mfu")
    bound = ["at least"] * recorded.startswith("at least")
    return Figure("MFU", recorded.removeprefix("at least "), ", ".join(bound + facts), "mfu")


def _step_time(report: PerfReport, rank: RankAnalysis) -> Figure:
    """Return the median step without the profiler, if it is known, else the mean of the recorded steps."""
    usual = report.step_times.of_rank(rank.rank) if report.step_times is not None else None
    wall, steps = rank.breakdown.wall, rank.breakdown.averaged_steps
    if not rank.breakdown.marked:
        return Figure("Recording", format_duration(wall.mean_ns), definition="step")
    if usual is not None:
        note = f"median of {usual.steps:,} without the profiler"
        return Figure("Step time", format_duration(usual.p50_ns), note, "step-timer")
    spread = f", ± {format_duration(wall.sd_ns)}" if wall.sd_ns is not None else ""
    mean = f"mean of {steps:,} recorded{spread}" if steps > 1 else "one recorded"
    return Figure("Step time", format_duration(wall.mean_ns), mean, "step")


def _tensor_cores(arithmetic: Arithmetic | None) -> tuple[str, str]:
    """Return the share of compute on Tensor Cores. Kernels with names that do not show it count as unknown."""
    if arithmetic is None or not arithmetic.compute_ns or arithmetic.tensor_core_share is None:
        return NOT_AVAILABLE, ""
    unknown = arithmetic.tensor_core_unknown_ns / arithmetic.compute_ns
    share = format_share(arithmetic.tensor_core_share)
    if unknown > UNKNOWN_SHARE:
        return "unknown", f"{share} of compute is known to run on them"
    return share, f"of compute{f', {format_share(unknown)} unknown' if unknown else ''}"


def _captures(captures: Sequence[Captured]) -> Iterator[Block]:
    if captures:
        yield Heading("Captures", definition="capture", aside="recorded outside of the schedule")
    for capture in captures:
        facts = []
        if capture.slowdown is not None:
            usual, limit = format_duration(capture.slowdown.usual_ns), format_duration(capture.slowdown.limit_ns)
            facts.append(f"usual {usual}, limit {limit}")
        step = format_duration(capture.step_ns)
        recorded = f"{counted(capture.recorded_steps, 'step')} recorded, {step} each"
        facts.append(recorded if capture.recorded_steps else "no complete step recorded")
        if capture.rank is not None:
            several = f" of {len(capture.ranks)}" if len(capture.ranks) > 1 else ""
            facts.append(f"rank {capture.rank}{several}")
        tables = tuple(capture_changes(capture))
        yield Card(
            f"Step {capture.step:,}",
            capture.trigger.value,
            "command" if capture.slowdown is None else "warning",
            (
                *map(Line, capture.evidence),
                *((Details("Differences from the scheduled window", tables),) if tables else ()),
                Line((Span(capture.folder, "command"),), "quiet"),
            ),
            " · ".join(facts),
        )


def _windows(trust: Trust) -> Iterator[Block]:
    """Yield the effect of each window of the profiler on the run."""
    back = {True: "yes", False: "no", None: "unknown"}
    yield tabulate(
        trust.windows,
        (
            Field("steps", "name", _steps),
            Field("step before", "duration", "before_ns"),
            Field("inside", "duration", "inside_ns"),
            Field("after", "duration", "after_ns"),
            Field("inside / before", "figure", lambda row: _ratio(row.overhead)),
            Field("after / before", "figure", lambda row: _ratio(row.lasting)),
            Field("recovered", "text", lambda row: Cell(back[row.returned], troubled=row.returned is False)),
            Field("cost", "duration", "cost_ns"),
        ),
        "Effect of the profiler on the run",
        "profiler-cost",
    )
    if trust.analysis_ns is not None:
        yield Line(f"The analysis took {format_duration(trust.analysis_ns)}.", "quiet")


def _steps(row: WindowTrust) -> str:
    window = row.window
    return f"{window.first_step} – {window.last_step}{f' ({window.capture})' if window.capture else ''}"


def _ratio(ratio: Ratio | None) -> Cell:
    if ratio is None:
        return Cell(NOT_AVAILABLE)
    low, high = format_ratio(ratio.low), format_ratio(ratio.high)
    return Cell(f"{format_ratio(ratio.estimate)} ({low} – {high})", ratio.estimate)
