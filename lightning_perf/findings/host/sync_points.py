"""The rule for waits of the host after which the device runs out of work."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_perf.analysis.host.sync_points import SyncPoint
from lightning_perf.analysis.host.user_code import function_text
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.kernels.cudnn_benchmark import is_benchmarking
from lightning_perf.findings.savings import RECORD_STACKS, each, step_ns, worth_it
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
    None: "torch.cuda.synchronize() or another runtime call",
}
"""The code that makes an operator wait."""

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
"""The place of the Trainer if a recording of `PerfCallback` names no phase."""

TELLING = 0.05
"""Places with less than this share of the saving are left out: with an empty queue nothing waits."""

ADVICE = (
    'Keep values on the device inside the step: self.log("loss", loss) instead of loss.item(), torch.where instead of '
    "indexing with a mask, copies with non_blocking=True."
)
PROGRESS_BAR = (
    "Refresh the progress bar less often, since it reads every value that is logged with prog_bar=True: "
    "Trainer(callbacks=[TQDMProgressBar(refresh_rate=50)]). In your own callbacks read values every log_every_n_steps."
)


def sync_points(analysis: RankAnalysis) -> Finding | None:
    """Find waits for the device that cost step time.

    A wait alone costs nothing, since the device works during it. It costs time if the device then runs dry, because the
    host could not queue ahead. Model: without the wait the host is ahead by as much, so at most the wait is saved of
    the time without work. Time in which the host waits for input is left out, since worker processes set the pace.
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
        f"Sync points: {times} {each(analysis)} the host waits for the device, and the device then runs dry",
        [_evidence(point, steps, each(analysis), own) for point in points][:3],
        _with_stack(points, _action(points, own), bool(analysis.metadata.with_stack)),
        saving_ns=(sure_ns / 2, regained_ns),
        step_ns=step_ns(analysis),
        model="Without the wait the host is ahead by as much, and the device runs dry for that much less.",
        rank=analysis.rank,
    )


def _action(points: Sequence[SyncPoint], own: bool) -> str:
    """Return the fix for most of the time."""
    between_ns = sum(point.regained_ns for point in points if point.phase == "other") if own else 0
    if 2 * between_ns <= sum(point.regained_ns for point in points):
        return ADVICE
    return PROGRESS_BAR


def _with_stack(points: Sequence[SyncPoint], action: str, has_stacks: bool) -> str:
    """Return the fix, with the function that waits or the way to find it."""
    functions = [function_text(point.function) for point in points if point.function]
    if functions:
        return f"Look at {functions[0]}. {action}"
    return action if has_stacks else f"{action} {RECORD_STACKS}"


def _evidence(point: SyncPoint, steps: int, each: str, own: bool) -> str:
    source = SOURCES.get(point.operator, point.operator or "")
    where = f"{point.operator} ({source})" if point.operator and source != point.operator else source
    place = PLACES.get(point.phase, BETWEEN if own else "")
    if point.function:
        place = f"{place} in {function_text(point.function)}".strip()
    return (
        f"{where}{f' {place}' if place else ''}: {format_count(point.calls / steps)} {each}. The host waits "
        f"{format_duration(point.wait_ns / steps)}, and then the device has no work for "
        f"{format_duration(point.drained_ns / steps)}."
    )
