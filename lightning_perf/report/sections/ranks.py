"""The comparison of ranks, on the console and on the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.ranks.distributed import Distributed
from lightning_perf.analysis.ranks.whole_fit import RanksOverFit
from lightning_perf.findings.savings import each
from lightning_perf.report.labels import CATEGORY_LABELS
from lightning_perf.report.sections.device import GPU_HEADS, gpu_figures
from lightning_perf.report.sentences import who_is_late
from lightning_perf.run_files.fit.gpu_health import GpuHealth
from lightning_perf.show.blocks import Block, Cell, Field, Figure, Figures, Heading, Line, Plot, rest, table, tabulate
from lightning_perf.show.plots import bars, of_total, time_axis
from lightning_perf.units import NOT_AVAILABLE, counted, format_count, format_duration, format_share

if TYPE_CHECKING:
    from lightning_perf.report.document import PerfReport

RANK_COLUMNS = ("device_compute", "communication", "memcpy", "input", "host_compute")
MAX_RANKS = 16

MANY_RANKS = 16
"""With more ranks, the bars are thin, and the ranks with the most work come first."""

RANK = Field("rank", "figure", lambda row: Cell(str(row.rank), row.rank))

ONE_READ = "Only one rank was read. To see which rank the others wait for, put the traces of all ranks into one folder."
UNKNOWN = "The recordings do not contain their ranks, so waits between ranks are not known."


def ranks_section(report: PerfReport) -> Iterator[Block]:
    """Yield a row per rank: its step time and the shares of the main categories."""
    yield Heading("Ranks")
    names = [n for n in RANK_COLUMNS if any(r.breakdown.category(n).mean_ns for r in report.ranks)]
    yield table(
        ("rank", "step time", *(CATEGORY_LABELS[name].replace(" ", "\n", 1) for name in names)),
        (
            (
                NOT_AVAILABLE if analysis.rank is None else str(analysis.rank),
                analysis.breakdown.wall.mean_ns,
                *(analysis.breakdown.category(name).share for name in names),
            )
            for analysis in _shown(report)
        ),
        kinds="name duration" + " share" * len(names),
    )
    yield from rest(len(report.ranks) - MAX_RANKS, "", hint="")
    yield from map(Line, report.who_waits)


def over_fit_section(run: RanksOverFit, gpus: Sequence[GpuHealth] = ()) -> Iterator[Block]:
    """Yield a row per rank over the whole fit: how often it is late, its own work by phase, and its GPU."""
    straggler = run.straggler
    yield Heading("Ranks over the whole fit", definition="late", aside=f"{counted(run.steps, 'step')} compared")
    yield Line(who_is_late(run), "good" if straggler is None else "warning")
    work = (
        Field("compute", "duration", "compute_ns", "own-work"),
        Field("other", "duration", "other_ns", "own-work"),
    )
    ranks = sorted(run.ranks, key=lambda row: -row.late_share) if len(run.ranks) > MAX_RANKS else run.ranks
    health = {gpu.rank: gpu_figures(gpu) for gpu in gpus if gpu.rank in {row.rank for row in ranks[:MAX_RANKS]}}
    unknown = (NOT_AVAILABLE,) * len(GPU_HEADS)

    def watched(at: int) -> Field:
        return Field(f"GPU {GPU_HEADS[at]}", "figure", lambda row: health.get(row.rank, unknown)[at])

    yield tabulate(
        ranks[:MAX_RANKS],
        (
            RANK,
            Field("late in", "share", "late_share", "late"),
            Field("by", "duration", "late_ns"),
            Field("waits", "duration", "wait_ns", "wait-over-the-fit"),
            Field("next batch", "duration", "input_ns"),
            *(work if run.whole_work else ()),
            Field("last step", "count", "last_step"),
            *(map(watched, range(len(GPU_HEADS))) if health else ()),
        ),
    )
    yield from rest(len(ranks) - MAX_RANKS, "", hint="")


def _shown(report: PerfReport) -> list[RankAnalysis]:
    """Return the first ranks, and every rank that the report mentions."""
    mentioned = {finding.rank for finding in report.findings}
    if report.distributed is not None and report.distributed.awaited is not None:
        mentioned.add(report.distributed.awaited.rank)
    lead = None if report.lead is None else report.ranks[report.lead]
    ranks = sorted(report.ranks, key=lambda each: (each is not lead, each.rank is None or each.rank not in mentioned))
    first = {id(each) for each in ranks[:MAX_RANKS]}
    return [each for each in report.ranks if id(each) in first]


def ranks_parts(report: PerfReport) -> dict[str, Iterator[Block]]:
    """Return the blocks of each part on the ranks."""
    compared = report.distributed
    parts = {"step_by_rank": _side_by_side(report)}
    if compared is None:
        return {"compared": iter([Line(UNKNOWN, "warning")]), **parts} if len(report.ranks) > 1 else {}
    return {"compared": _compared(report, compared), **parts, "ranks": _ranks(compared), "skew": _skew(compared)}


def _compared(report: PerfReport, compared: Distributed) -> Iterator[Block]:
    awaited, world = compared.awaited, compared.world_size
    read = f"{len(compared.ranks)} of {world} ranks were read" if world else ""
    yield Heading("Ranks compared", definition="straggler", aside=read)
    if len(compared.ranks) < 2:
        yield Line(ONE_READ, "warning")
        return
    uneven = awaited is not None or compared.straggler is not None
    yield from (Line(text, "warning" if uneven else "good") for text in report.who_waits)
    if compared.clocks_comparable is False:
        yield Line("The ranks' clocks differ, so durations decide which rank arrived last.", "warning")
    waited = "none" if compared.matched_collectives else NOT_AVAILABLE
    last = "" if awaited is None else f"last to {format_share(awaited.last_arrival_share)}"
    saved = format_duration(compared.balanced_saving_ns)
    yield Figures(
        (
            Figure("Imbalance", format_share(compared.imbalance), "longest work over mean work", "imbalance"),
            Figure("If balanced", saved, "saved per step"),
            Figure("Collectives matched", format_count(compared.matched_collectives), definition="skew"),
            Figure("Waited for most", waited if awaited is None else f"rank {awaited.rank}", last, "awaited"),
        )
    )


def _side_by_side(report: PerfReport) -> Iterator[Block]:
    """Yield the step time of each rank by category."""
    ranks = report.ranks
    names = [
        f"recording {place}" if rank.rank is None else f"rank {rank.rank}" for place, rank in enumerate(ranks, start=1)
    ]
    walls = [rank.breakdown.wall.mean_ns or 0.0 for rank in ranks]
    unit, size_ns = time_axis(max(walls))
    traces, legend = [], []
    for row in ranks[0].breakdown.categories:
        times = [rank.breakdown.category(row.name).mean_ns or 0.0 for rank in ranks]
        if row.parent is not None or not any(times):
            continue
        label = CATEGORY_LABELS[row.name]
        texts = [
            f"{label}: {of_total(time, wall)}\n{name}" for time, wall, name in zip(times, walls, names, strict=True)
        ]
        traces.append(bars([time / size_ns for time in times], names, texts, row.name, orientation="h"))
        legend.append((label, row.name))
    yield Heading("Step time by rank", definition="step-time-breakdown")
    yield Plot(
        "Mean step time by category, with one bar per rank. The table has the figures.",
        tuple(traces),
        {"barmode": "stack", "xaxis": {"title": f"{unit} {each(ranks[0])}"}, "yaxis": {"autorange": "reversed"}},
        height=70 + (14 if len(ranks) > MANY_RANKS else 30) * len(ranks),
        legend=tuple(legend),
    )


def _ranks(compared: Distributed) -> Iterator[Block]:
    rows = sorted(compared.ranks, key=lambda row: -row.work_ns if len(compared.ranks) > MANY_RANKS else row.rank)
    yield Heading("Ranks", aside="mean per step")
    yield tabulate(
        rows,
        (
            RANK,
            Field("host", "text", lambda row: row.hostname or ""),
            Field("step time", "duration", "step_ns", "step"),
            Field("own work", "duration", "work_ns", "own-work"),
            Field("waits", "duration", "wait_ns", "wait-for-ranks"),
            Field("awaited", "duration", "awaited_ns", "awaited"),
            Field("compute", "duration", "compute_ns", "device_compute"),
            Field("exposed comm.", "duration", "exposed_communication_ns", "communication"),
            Field("input", "duration", "input_ns", "input"),
            Field("arrived last", "count", "last_arrivals", "arrived-last"),
            Field("began late", "duration", "late_ns", "began-late"),
            Field("steps", "count", "steps"),
        ),
    )


def _skew(compared: Distributed) -> Iterator[Block]:
    if compared.skew:
        yield Heading("Skew by collective", definition="skew")
    yield tabulate(
        compared.skew,
        (
            Field("collective", "code", "name"),
            Field("group", "text", "group"),
            Field("calls", "count", "calls"),
            Field("mean skew", "duration", "mean_skew_ns"),
            Field("greatest", "duration", "max_skew_ns"),
            Field("last most often", "figure", lambda row: Cell(f"rank {row.last_rank}", row.last_rank)),
        ),
    )
