"""The rule for ranks with more work than the others."""

from __future__ import annotations

from lightning_perf.analysis.ranks.distributed import Distributed
from lightning_perf.findings.finding import MIN_SHARE, Finding, finding
from lightning_perf.findings.savings import counted
from lightning_perf.units import format_duration, format_share

__all__ = ["rank_imbalance"]

ACTIONS = {
    "input": "Compare the loader of this rank with the others: its disk, its free cores and num_workers. Copy the data "
    "to a local disk if only this rank reads a remote one.",
    "device_compute": "Give ranks batches of equal size and length: DataLoader(…, batch_sampler=…) with samples "
    "bucketed by length. Compare the clocks of the devices: nvidia-smi -q -d CLOCK,PERFORMANCE.",
}
WORK = {
    "host_compute": "operators on the host",
    "host_other": "Python and waiting on the host",
    "input": "waiting for input",
}
OTHERWISE = (
    "Do work that only this rank has less often: logging, checkpoints and metrics on one rank, e.g. "
    "Trainer(log_every_n_steps=200). Its own report (lightning-perf analyze TRACE) shows the phase."
)


def rank_imbalance(distributed: Distributed) -> Finding | None:
    """Find ranks that hold the others up.

    Model: with evenly spread work a step takes the mean work of the ranks instead of the longest. Half of the
    difference is saved if some of its causes stay.
    """
    straggler = distributed.straggler
    if straggler is None or not distributed.ranks:
        return None
    step_ns = next(share.step_ns for share in distributed.ranks if share.rank == straggler.rank)
    saving_ns = distributed.balanced_saving_ns
    if step_ns <= 0 or saving_ns < MIN_SHARE * step_ns:
        return None
    category = WORK.get(straggler.category, straggler.category.replace("_", " "))
    evidence = [f"It spends {format_duration(straggler.excess_ns)} per step more than the others in {category}."]
    if straggler.last_arrival_share is not None:
        share = format_share(straggler.last_arrival_share)
        evidence.append(f"It arrives last at {share} of {counted(distributed.matched_collectives, 'collective')}.")
    awaited = distributed.awaited
    if awaited is not None and awaited.rank != straggler.rank:
        evidence.append(f"But {format_share(awaited.share)} of the waits in collectives are for rank {awaited.rank}.")
    holds_up = awaited is not None and awaited.rank == straggler.rank
    return finding(
        "rank-imbalance",
        f"Imbalance: rank {straggler.rank} {'holds up the others with' if holds_up else 'has the most work,'} "
        f"{format_share(distributed.imbalance)} more work than the mean",
        evidence,
        ACTIONS.get(straggler.category, OTHERWISE),
        saving_ns=(saving_ns / 2, saving_ns),
        step_ns=step_ns,
        model="Evenly spread work saves the difference to the mean, or half of it if some causes stay.",
        rank=straggler.rank,
    )
