"""Lightning broadcasts a stop flag before each batch, and waits for it."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import each, step_ns, worth_it
from lightning_perf.units import format_count, format_duration

__all__ = ["stop_flags"]

ACTION = (
    "Lightning does it from version 2.5.6 on (Lightning-AI/pytorch-lightning#20825), and no option turns it off. Where "
    "the launcher sends SIGTERM to every rank itself, as SLURM and torchrun do, leave it out before training: "
    "from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop; "
    "_TrainingEpochLoop._broadcast_sigterm_tensor = lambda self: None. Elsewhere do more in each batch: a larger one "
    "rather than accumulate_grad_batches, which has a broadcast for each of its batches."
)


def stop_flags(analysis: RankAnalysis) -> Finding | None:
    """Find time that goes into Lightning's broadcast of a stop flag.

    All ranks meet there, so the wait for slower ranks is in it too and would come at the next collective anyway: the
    rank that waits least speaks. Model: half to all of its wait in which no device works.
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
        f"Stop flags: Lightning broadcasts one and waits for it, {times} {per}",
        [
            f"From broadcast to answer: {format_duration(flags.wait_ns / steps)} {per}.",
            f"No device works in {format_duration(exposed_ns)} of it.",
            "It tells every rank before every batch whether rank 0 got SIGTERM; no work can be queued ahead of it.",
        ],
        ACTION,
        saving_ns=(exposed_ns / 2, exposed_ns),
        step_ns=step_ns(analysis),
        model="Half to all of the wait goes, on the rank that waits least; what others wait beyond it stays.",
        rank=analysis.rank,
    )
