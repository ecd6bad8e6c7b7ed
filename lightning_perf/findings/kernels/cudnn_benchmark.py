"""The rule for recorded steps in which cuDNN measures algorithms."""

from __future__ import annotations

from lightning_perf.analysis.host.sync_points import SyncPoint
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import counted, step_ns, worth_it
from lightning_perf.units import format_duration

__all__ = ["cudnn_benchmark", "is_benchmarking"]


def is_benchmarking(point: SyncPoint) -> bool:
    """Return whether a wait is cuDNN's timing of an algorithm: an event synchronization inside a convolution."""
    return "EventSynchronize" in point.call and "conv" in (point.operator or "").lower()


def cudnn_benchmark(analysis: RankAnalysis) -> Finding | None:
    """Find steps in which ``torch.backends.cudnn.benchmark`` measures algorithms.

    It does so once per shape, so with fixed shapes it is over after the first step. Model: the waits of the host for
    these measurements go away, and up to as much again for the work that is measured.
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
        "cuDNN measures algorithms during the recorded steps",
        (
            (
                f"The host waits for {counted(calls, 'measurement')} inside convolutions, "
                f"{format_duration(wait_ns * steps)} in total."
            ),
        ),
        "If you recorded the first steps, record later ones: PerfCallback(skip_first=20). If shapes change from batch "
        "to batch, pad them to a few sizes, or turn the measurements off: Trainer(benchmark=False).",
        saving_ns=(wait_ns, min(2 * wait_ns, step_ns(analysis))),
        step_ns=step_ns(analysis),
        model="The waits for measurements go away, and up to as much again for the measured work.",
        rank=analysis.rank,
    )
