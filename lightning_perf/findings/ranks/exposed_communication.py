"""The rule for collectives that no compute hides."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import step_ns, whole, worth_it
from lightning_perf.units import format_duration, format_share

__all__ = ["exposed_communication", "exposed_ns"]

MIN_SHARE = 0.05

ACTIONS = {
    "DistributedDataParallel": (
        "Send less often: Trainer(accumulate_grad_batches=4). Send fewer bytes and overlap more: DDPStrategy("
        "static_graph=True, gradient_as_bucket_view=True, ddp_comm_hook=bf16_compress_hook). Check that ranks get "
        "equal work."
    ),
    "FullyShardedDataParallel": (
        'Send fewer bytes: Trainer(precision="bf16-mixed"), which also applies to collectives. Prefetch, which is off '
        "by default: FSDPStrategy(forward_prefetch=True). Check that ranks get equal work."
    ),
}
OTHERWISE = "Issue collectives earlier, so that compute hides them, send less, and check that ranks get equal work."
ON_HOST = (
    "Send less often: Trainer(accumulate_grad_batches=4), or a larger batch per rank. On one machine, one process with "
    "all threads (torch.set_num_threads) sends nothing. Check that ranks get equal work."
)


def exposed_ns(analysis: RankAnalysis) -> float:
    """Return the exposed time of collectives in nanoseconds per step, on the device or on the host."""
    communication = analysis.communication
    if communication is None or analysis.breakdown.has_device:
        return analysis.breakdown.category("communication").mean_ns or 0.0
    return communication.host_exposed_ns / max(analysis.breakdown.averaged_steps, 1)


def exposed_communication(analysis: RankAnalysis) -> Finding | None:
    """Find communication that the step waits for.

    Model: compute can hide as much of it as there is compute, or a quarter of that if the step waits for the last
    bucket or a slower rank. On the host, collectives use the processor that computes, so only sending less often helps:
    a quarter as often saves three quarters, but nothing of the wait for another rank.
    """
    waits_ns, step = exposed_ns(analysis), step_ns(analysis)
    if not step or waits_ns < MIN_SHARE * step:
        return None
    title = f"Exposed communication: {format_share(waits_ns / step)} of {whole(analysis)} waits for collectives"
    if analysis.breakdown.has_device:
        compute_ns = analysis.breakdown.category("device_compute").mean_ns or 0.0
        best_ns = min(waits_ns, compute_ns)
        wrapper = next((name for name in analysis.wrappers if name in ACTIONS), None)
        action = ACTIONS[wrapper] if wrapper else OTHERWISE
        model = "Compute can hide at most its own time, or a quarter if the step waits for the last bucket."
    else:
        title, best_ns, action = f"{title} on the host", 0.75 * waits_ns, ON_HOST
        model = "Sending a quarter as often saves three quarters. Waits for a slower rank stay."
    if not worth_it(best_ns, analysis):
        return None
    return finding(
        "exposed-communication",
        title,
        (f"{format_duration(waits_ns)} of {format_duration(step)} is communication that no compute hides.",),
        action,
        saving_ns=(best_ns / 4, best_ns),
        step_ns=step,
        model=model,
        rank=analysis.rank,
    )
