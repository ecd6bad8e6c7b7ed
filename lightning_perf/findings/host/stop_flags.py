"""The rule for Lightning's stop flag, which it broadcasts before each batch and waits for."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import each, step_ns, worth_it
from lightning_perf.units import format_count, format_duration

__all__ = ["stop_flags"]

ACTION = (
    "Do more per batch: raise batch_size rather than accumulate_grad_batches, which broadcasts for each of its "
    "batches. No option turns the broadcast off. If your launcher sends SIGTERM to every rank, as SLURM and torchrun "
    "do, you can replace the method before training: from lightning.pytorch.loops.training_epoch_loop import "
    "_TrainingEpochLoop; _TrainingEpochLoop._broadcast_sigterm_tensor = lambda self: None. The method is private: "
    "check this line after each update of Lightning."
)


def stop_flags(analysis: RankAnalysis) -> Finding | None:
    """Find the time of Lightning's broadcast of a stop flag.

    All ranks meet there, so it includes the wait for slower ranks, which would come at the next collective anyway. The
    rank that waits least therefore decides. Model: half to all of its wait in which no device works.
    """
    flags = analysis.stop_flags
    if flags is None:
        return None
    steps = max(flags.steps, 1)
    exposed_ns = flags.exposed_ns / steps
    if not worth_it(exposed_ns, analysis):
        return None
    per, calls = each(analysis), flags.calls / steps
    times = "once" if calls == 1 else f"{format_count(calls)} times"
    return finding(
        "stop-flags",
        f"Stop flags: Lightning waits for a broadcast {times} {per}",
        [
            (
                f"The broadcast and its answer take {format_duration(flags.wait_ns / steps)} {per}. No device works in "
                f"{format_duration(exposed_ns)} of it."
            ),
            (
                "Lightning 2.5.6 and later tell every rank before every batch whether rank 0 received SIGTERM "
                "(Lightning-AI/pytorch-lightning#20825). No work can be queued ahead of it."
            ),
        ],
        ACTION,
        saving_ns=(exposed_ns / 2, exposed_ns),
        step_ns=step_ns(analysis),
        model="Half to all of the wait on the rank that waits least. The longer waits of other ranks stay.",
        rank=analysis.rank,
    )
