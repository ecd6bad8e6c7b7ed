"""One frame of the live view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lightning_perf.run_files.run_record import Outcome
from lightning_perf.show.terminal_text import plain
from lightning_perf.top.watch import LATEST_STEPS, RankState, RunState
from lightning_perf.units import counted, format_count, format_duration, format_ratio, format_share, with_minus

STALE_S = 60.0
"""A rank that has written nothing for so long is marked. Normally it writes every 50 steps or 5 seconds."""

MAX_RANKS = 16
MAX_SLOW_STEPS = 5
MAX_METRICS = 6

SLOWER = 1.25
"""A step time this many times the usual one is marked, as for captures of slow steps."""

_BARS = "▁▂▃▄▅▆▇█"


def render_frame(state: RunState) -> RenderableType:
    """Return a frame."""
    return Group(*_parts(state))


def _parts(state: RunState) -> Iterator[RenderableType]:
    yield Text.assemble(plain(str(state.folder), "bold"), "  ", _status(state))
    if state.epoch is not None:
        values = [
            f"{name} {with_minus(f'{value:.4g}')}"
            for name, value in list(state.epoch.metrics.items())[:MAX_METRICS]
            if value is not None
        ]
        yield plain("  ".join([f"epoch {state.epoch.epoch} ended", *values]))
    for problem in state.problems:
        yield plain(problem, "red")
    yield from _hangs(state)
    if not state.ranks:
        yield Text("No step yet. Step times appear after 50 steps or 5 seconds.", style="dim")
        return
    yield Text()
    yield from _ranks(state.ranks, running=state.ended is None)
    yield Text()
    yield from _latest(state.ranks[0], several=len(state.ranks) > 1)
    yield from _slow_steps(state.ranks)


def _status(state: RunState) -> Text:
    ended = state.ended
    if ended is None and state.hangs:
        return Text(f"no step ends on {counted(len(state.hangs), 'rank')}", style="red")
    if ended is None:
        age_s = min((rank.age_s for rank in state.ranks), default=0.0)
        if age_s < STALE_S:
            return Text("running", style="green")
        return Text(f"no new step for {format_duration(1e9 * round(age_s))}", style="yellow")
    if ended.outcome is Outcome.FINISHED:
        return Text(f"finished after {format_duration(1e9 * ended.train_time_s)}", style="green")
    detail = f": {ended.error}" if ended.error else ""
    return plain(f"{ended.outcome.value} after {format_duration(1e9 * ended.train_time_s)}{detail}", "red")


def _hangs(state: RunState) -> Iterator[RenderableType]:
    """Two lines per rank in which no step or batch has ended for long: its step and phase, and its place."""
    for report in state.hangs[:MAX_RANKS]:
        # When the run has ended, nobody knows how long it would have lasted.
        seconds = report.seconds if state.ended is not None else state.now_s - report.since_s
        age = format_duration(1e9 * round(seconds))
        yield plain(f"rank {report.rank}: no step ended for {age}, step {report.step}, {report.phase}", "red")
        yield plain("  " + ", last collective ".join(filter(None, (report.place, report.collective))))
    if len(state.hangs) > MAX_RANKS:
        yield Text(f"and {len(state.hangs) - MAX_RANKS} more ranks", style="red")
    for rank in state.gone[:MAX_RANKS]:
        yield Text(f"rank {rank}: its process is gone", style="red")


def _ranks(ranks: Sequence[RankState], *, running: bool) -> Iterator[RenderableType]:
    """One row per rank; of many, those with the longest steps."""
    shown = ranks
    if len(ranks) > MAX_RANKS:
        slowest = sorted(ranks, key=lambda rank: -rank.step_ns)[:MAX_RANKS]
        shown = sorted(slowest, key=lambda rank: rank.rank)
    scaled = any(rank.loss_scale is not None for rank in ranks)
    captured = any(rank.captures for rank in ranks)
    heads = ["steps", "step time", "usual", "wait", "samples/s", "slow"]
    heads += ["scale", "skipped"] if scaled else []
    heads += ["captures"] if captured else []
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("rank", *heads, "written"):
        grid.add_column(head, justify="right", no_wrap=True)
    for rank in shown:
        slow = rank.step_ns >= SLOWER * rank.usual.p50_ns
        cells = [
            Text(str(rank.rank)),
            Text(str(rank.steps)),
            Text(format_duration(rank.step_ns), style="yellow" if slow else ""),
            Text(format_duration(rank.usual.p50_ns)),
            Text(format_share(rank.data_wait_share)),
            Text(format_count(rank.samples_per_second)),
            Text(str(rank.usual.outlier_steps)),
        ]
        if scaled:
            cells += [Text(format_count(rank.loss_scale)), Text(str(rank.skipped_steps))]
        if captured:
            cells.append(Text(str(rank.captures)))
        stale = running and rank.age_s >= STALE_S
        cells.append(Text(f"{format_duration(1e9 * round(rank.age_s))} ago", style="yellow" if stale else "dim"))
        grid.add_row(*cells)
    yield grid
    if len(shown) < len(ranks):
        yield Text(f"the {MAX_RANKS} ranks of {len(ranks)} with the longest steps", style="dim")


def _latest(rank: RankState, *, several: bool) -> Iterator[RenderableType]:
    low, high = min(rank.latest_ns), max(rank.latest_ns)
    spread = max(high - low, 1)
    bars = "".join(_BARS[(time_ns - low) * (len(_BARS) - 1) // spread] for time_ns in rank.latest_ns)
    of = f" of rank {rank.rank}" if several else ""
    steps = counted(min(len(rank.latest_ns), LATEST_STEPS), "step")
    yield Text(f"last {steps}{of}, {format_duration(low)} to {format_duration(high)}", style="dim")
    yield Text(bars, no_wrap=True)


def _slow_steps(ranks: Sequence[RankState]) -> Iterator[RenderableType]:
    found = [(sample, rank) for rank in ranks for sample in rank.usual.outliers]
    if not found:
        return
    yield Text()
    yield Text("slowest steps", style="dim")
    for sample, rank in sorted(found, key=lambda pair: -pair[0].step_ns)[:MAX_SLOW_STEPS]:
        waited = f", waits {format_duration(sample.data_wait_ns)} for data" if sample.data_wait_ns else ""
        of = f" of rank {rank.rank}" if len(ranks) > 1 else ""
        ratio = format_ratio(sample.step_ns / rank.usual.p50_ns) if rank.usual.p50_ns else ""
        yield Text(f"  step {sample.step}{of}: {format_duration(sample.step_ns)}, {ratio} the usual{waited}")
