"""Some ranks have more work than others, and all wait for the slowest."""

from __future__ import annotations

from lightning_perf.analysis.ranks.distributed import Distributed
from lightning_perf.findings.finding import MIN_SHARE, Finding, finding
from lightning_perf.units import format_duration, format_share

__all__ = ["rank_imbalance"]

ACTIONS = {
    "input": "Give that rank's loader what the others have: check its disk, its cores and num_workers.",
    "device_compute": "Give ranks equal work: batches of equal size and length (bucket by length); and compare the "
    "clocks and temperatures of the devices (nvidia-smi -q -d CLOCK,PERFORMANCE).",
}
WORK = {
    "host_compute": "operators on the host",
    "host_other": "Python and waiting on the host",
    "input": "waiting for input",
}
OTHERWISE = "Look at that rank's own report for what it does more of: logging, checkpoints and metrics on one rank."


def rank_imbalance(distributed: Distributed) -> Finding | None:
    """Find ranks that hold the others up.

    Model: with the work spread evenly a step takes the ranks' mean work instead of the longest; half of that where the
    spread has reasons that stay.
    """
    straggler = distributed.straggler
    if straggler is None or not distributed.ranks:
        return None
    step_ns = next(share.step_ns for share in distributed.ranks if share.rank == straggler.rank)
    saving_ns = distributed.balanced_saving_ns
    if step_ns <= 0 or saving_ns < MIN_SHARE * step_ns:
        return None
    category = WORK.get(straggler.category, straggler.category.replace("_", " "))
    evidence = [f"It takes {format_duration(straggler.excess_ns)} a step more than the others in {category}."]
    if straggler.last_arrival_share is not None:
        share = format_share(straggler.last_arrival_share)
        evidence.append(f"It comes last to {share} of {distributed.matched_collectives:,} collectives.")
    awaited = distributed.awaited
    if awaited is not None and awaited.rank != straggler.rank:
        evidence.append(f"But {format_share(awaited.share)} of the waits in collectives are for rank {awaited.rank}.")
    holds_up = awaited is not None and awaited.rank == straggler.rank
    return finding(
        "rank-imbalance",
        f"Rank {straggler.rank} {'holds up the others: its work is' if holds_up else 'has the most work of its own:'} "
        f"{format_share(distributed.imbalance)} over the mean",
        evidence,
        ACTIONS.get(straggler.category, OTHERWISE),
        saving_ns=(saving_ns / 2, saving_ns),
        step_ns=step_ns,
        model="With work spread evenly a step takes the mean instead of the longest; half of that where causes stay.",
        rank=straggler.rank,
    )
