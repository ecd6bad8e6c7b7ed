"""The step waits for collectives that no compute hides."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.amdahl import step_ns, whole, worth_it
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.units import format_duration, format_share

__all__ = ["exposed_communication"]

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


def exposed_communication(analysis: RankAnalysis) -> Finding | None:
    """Find communication that the step waits for.

    Model: at most as much of it can be hidden as there is compute that hides none yet; a quarter of that where the last
    bucket or a slower rank is what the step waits for.
    """
    row = analysis.breakdown.category("communication")
    exposed_ns, share = row.mean_ns or 0.0, row.share or 0.0
    if share < MIN_SHARE:
        return None
    compute_ns = analysis.breakdown.category("device_compute").mean_ns or 0.0
    best_ns = min(exposed_ns, compute_ns)
    if not worth_it(best_ns, analysis):
        return None
    wrapper = next((name for name in analysis.wrappers if name in ACTIONS), None)
    return finding(
        "exposed-communication",
        f"Exposed communication: {format_share(share)} of {whole(analysis)} waits for collectives",
        (f"{format_duration(exposed_ns)} of {format_duration(step_ns(analysis))} is communication with no compute.",),
        ACTIONS[wrapper] if wrapper else OTHERWISE,
        saving_ns=(best_ns / 4, best_ns),
        step_ns=step_ns(analysis),
        model="No more can be hidden than there is compute; a quarter where the step waits for the last bucket.",
        rank=analysis.rank,
    )
