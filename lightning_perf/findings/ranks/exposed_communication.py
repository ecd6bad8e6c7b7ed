"""The step waits for collectives that no compute hides."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import step_ns, whole, worth_it
from lightning_perf.units import format_duration, format_share

__all__ = ["exposed_communication", "exposed_ns"]

MIN_SHARE = 0.05

ACTIONS = {
    "DistributedDataParallel": (
        "Overlap more with backward: DDPStrategy(gradient_as_bucket_view=True, static_graph=True, bucket_cap_mb=50); "
        "send less: a bf16_compress_hook, or accumulate_grad_batches; and check that ranks get equal work."
    ),
    "FullyShardedDataParallel": (
        "Prefetch and send less: backward_prefetch=BACKWARD_PRE, forward_prefetch=True, limit_all_gathers=True, "
        "mixed precision for collectives, or a hybrid sharding strategy; and check that ranks get equal work."
    ),
}
OTHERWISE = "Issue collectives earlier so that they run beside compute, send less, and check that ranks get equal work."
ON_HOST = (
    "Send less: accumulate_grad_batches, or a larger batch a rank; on one machine one process with all its threads "
    "(torch.set_num_threads) sends nothing; and check that ranks get equal work."
)


def exposed_ns(analysis: RankAnalysis) -> float:
    """Time a step in collectives that nothing hides: on the device, or in a training on processors on the host."""
    communication = analysis.communication
    if communication is None or analysis.breakdown.has_device:
        return analysis.breakdown.category("communication").mean_ns or 0.0
    return communication.host_exposed_ns / max(analysis.breakdown.averaged_steps, 1)


def exposed_communication(analysis: RankAnalysis) -> Finding | None:
    """Find communication that the step waits for.

    Model: at most as much of it can be hidden as there is compute that hides none yet; a quarter of that where the last
    bucket or a slower rank is what the step waits for. On the host, where collectives take the processor that computes,
    sending less often is what helps: a quarter as often saves three quarters, and nothing of the wait for another rank.
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
        model = "No more can be hidden than there is compute; a quarter where the step waits for the last bucket."
    else:
        title, best_ns, action = f"{title} on the host", 0.75 * waits_ns, ON_HOST
        model = "Sending a quarter as often saves three quarters of it; what is a wait for a slower rank stays."
    if not worth_it(best_ns, analysis):
        return None
    return finding(
        "exposed-communication",
        title,
        (f"{format_duration(waits_ns)} of {format_duration(step)} is communication with no compute.",),
        action,
        saving_ns=(best_ns / 4, best_ns),
        step_ns=step,
        model=model,
        rank=analysis.rank,
    )
