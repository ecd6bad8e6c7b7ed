"""The host waits for the device in the middle of a step, and the device then waits for the host."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_perf.analysis.host.sync_points import SyncPoint
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.kernels.cudnn_benchmark import is_benchmarking
from lightning_perf.findings.savings import each, step_ns, worth_it
from lightning_perf.units import format_count, format_duration

__all__ = ["sync_points"]

SOURCES = {
    "aten::item": ".item()",
    "aten::_local_scalar_dense": ".item()",
    "aten::is_nonzero": "bool() of a tensor",
    "aten::nonzero": "nonzero() or indexing with a mask",
    "aten::to": ".cpu() or .to() of a tensor",
    "aten::_to_copy": ".cpu() or .to() of a tensor",
    "aten::copy_": "copy_() between host and device",
    "aten::equal": "torch.equal()",
    "aten::unique": "unique()",
    None: "torch.cuda.synchronize() or another call of the runtime",
}
"""What a user wrote to make an operator wait."""

PLACES = {
    "fetch": "while a batch is fetched",
    "transfer": "while a batch is moved",
    "forward": "in forward",
    "backward": "in backward",
    "optimizer": "in the optimizer's part",
    "validation": "in validation",
    "checkpoint": "while a checkpoint is saved",
}
BETWEEN = "in a callback, a logger or the progress bar"
"""Where the Trainer is when a recording of `PerfCallback` names no phase."""

TELLING = 0.05
"""A place with less than this part of what all would win is not told of: an empty queue makes nobody wait."""

ADVICE = (
    "Keep values on the device inside the step: log tensors with self.log(…) rather than .item(), every "
    "log_every_n_steps; replace masks by torch.where; copy with non_blocking=True."
)
PROGRESS_BAR = (
    "Lightning's progress bar reads what is logged with prog_bar=True at each of its refreshes: refresh it seldom, "
    "callbacks=[TQDMProgressBar(refresh_rate=50)], or log without prog_bar; callbacks of your own should read values "
    "every log_every_n_steps."
)


def sync_points(analysis: RankAnalysis) -> Finding | None:
    """Find waits for the device that cost step time.

    A wait alone costs nothing: the device works meanwhile. It costs when the device then runs dry, because the host was
    kept from queueing ahead. Model: without the wait the host is ahead by as much, so of the time without work it wins
    back at most the wait; nothing of the time in which it waits for input, where worker processes set the pace.
    """
    syncs = analysis.sync_points
    if syncs is None:
        return None
    points = [point for point in syncs.points if not is_benchmarking(point)]
    total_ns = sum(point.regained_ns for point in points)
    points = [point for point in points if point.regained_ns > TELLING * total_ns]
    own = analysis.phases.source == "own"
    steps = max(syncs.steps, 1)
    regained_ns = sum(point.regained_ns for point in points) / steps
    if not worth_it(regained_ns, analysis):
        return None
    sure_ns = sum(min(point.regained_ns, point.drained_ns) for point in points) / steps
    calls = format_count(sum(point.calls for point in points) / steps)
    times = "once" if calls == "1" else f"{calls} times"
    return finding(
        "sync-points",
        f"Sync points: {times} {each(analysis)} the host waits for the device, which then runs dry",
        [_evidence(point, steps, each(analysis), own) for point in points][:3],
        _action(points, own),
        saving_ns=(sure_ns / 2, regained_ns),
        step_ns=step_ns(analysis),
        model="Without the wait the host is ahead by as much: at most that is won of the time without work.",
        rank=analysis.rank,
    )


def _action(points: Sequence[SyncPoint], own: bool) -> str:
    """What to do about most of the time that would be regained."""
    between_ns = sum(point.regained_ns for point in points if point.phase == "other") if own else 0
    if 2 * between_ns <= sum(point.regained_ns for point in points):
        return ADVICE
    return PROGRESS_BAR


def _evidence(point: SyncPoint, steps: int, each: str, own: bool) -> str:
    source = SOURCES.get(point.operator, point.operator or "")
    where = f"{point.operator} ({source})" if point.operator and source != point.operator else source
    place = PLACES.get(point.phase, BETWEEN if own else "")
    return (
        f"{where}{f' {place}' if place else ''}: {format_count(point.calls / steps)} {each}, the host waits "
        f"{format_duration(point.wait_ns / steps)}, and then the device has no work for "
        f"{format_duration(point.drained_ns / steps)}."
    )
