"""cuDNN tries out algorithms in the recorded steps."""

from __future__ import annotations

from lightning_perf.analysis.host.sync_points import SyncPoint
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import step_ns, worth_it
from lightning_perf.units import format_count, format_duration

__all__ = ["cudnn_benchmark", "is_benchmarking"]


def is_benchmarking(point: SyncPoint) -> bool:
    """Whether a wait is cuDNN's timing of an algorithm: an event waited for inside a convolution."""
    return "EventSynchronize" in point.call and "conv" in (point.operator or "").lower()


def cudnn_benchmark(analysis: RankAnalysis) -> Finding | None:
    """Find steps in which ``torch.backends.cudnn.benchmark`` measures algorithms.

    It does so once a shape; in steady training of one shape it is over after the first step. Model: the waits of the
    host for its measurements go away, and as much again that it computes besides.
    """
    syncs = analysis.sync_points
    if syncs is None:
        return None
    points = [point for point in syncs.points if is_benchmarking(point)]
    steps = max(syncs.steps, 1)
    wait_ns = sum(point.wait_ns for point in points) / steps
    if not worth_it(wait_ns, analysis):
        return None
    calls = sum(point.calls for point in points)
    return finding(
        "cudnn-benchmark",
        "cudnn.benchmark is measuring algorithms in the recorded steps",
        (
            (
                f"Inside convolutions the host waits for {format_count(calls)} measurements, "
                f"{format_duration(wait_ns * steps)} in all."
            ),
        ),
        "If these are the first steps, record later ones (skip_first). If shapes change from batch to batch, pad them "
        "to a few sizes or set torch.backends.cudnn.benchmark = False.",
        saving_ns=(wait_ns, min(2 * wait_ns, step_ns(analysis))),
        step_ns=step_ns(analysis),
        model="The waits for measurements go away, with up to as much again of work around them.",
        rank=analysis.rank,
    )
