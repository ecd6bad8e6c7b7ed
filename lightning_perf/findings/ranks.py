"""Rules about several ranks: collectives, uneven work, `DataParallel` and Lightning's stop flag."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.ranks.distributed import Distributed, LinkUse
from lightning_perf.analysis.ranks.whole_fit import LateRank, RanksOverFit
from lightning_perf.findings.finding import (
    LARGER_BATCH,
    MIN_SHARE,
    SIXTEEN_BITS,
    Problem,
    SavingRange,
    ranks_rule,
    rule,
    run_rule,
)
from lightning_perf.findings.savings import each, step_ns, whole
from lightning_perf.units import counted, format_bytes, format_count, format_duration, format_ratio, format_share

MIN_EXPOSED_SHARE = 0.05

SEND_LESS = {
    "DistributedDataParallel": (
        (
            "Send less often: Trainer(accumulate_grad_batches=4). Send fewer bytes and overlap more: DDPStrategy("
            "static_graph=True, gradient_as_bucket_view=True, ddp_comm_hook=bf16_compress_hook). Check that ranks get "
            "equal work."
        ),
        (
            "accumulation multiplies the effective batch, so scale the learning rate with it; the hook rounds "
            "gradients to BF16"
        ),
    ),
    "FullyShardedDataParallel": (
        (
            'Send fewer bytes: Trainer(precision="bf16-mixed"), which also applies to collectives. Prefetch, which is '
            "off by default: FSDPStrategy(forward_prefetch=True). Check that ranks get equal work."
        ),
        SIXTEEN_BITS,
    ),
}
"""The fix by wrapper, and how it changes results."""

SEND_EARLIER = "Issue collectives earlier, so that compute hides them, send less, and check that ranks get equal work."
SEND_LESS_ON_HOST = (
    "Send less often: Trainer(accumulate_grad_batches=4), or a larger batch per rank. On one machine, one process with "
    "all threads (torch.set_num_threads) sends nothing. Check that ranks get equal work."
)


FAST_SHARE, SLOW_SHARE = 0.7, 0.35
"""Shares of the link's peak. Between them, the use of the link says little: a published run of nccl-tests on 8 A100
with NVLink reaches 65 % with 1 GB (https://github.com/li-plus/playground/blob/master/cuda/nccl.md)."""

START_BOUND_S = 100e-6
"""A call as short as this mostly waits for NCCL to start, which takes tens of microseconds. A longer one is slow."""

LARGER_BUCKETS = {
    "DistributedDataParallel": "DDPStrategy(bucket_cap_mb=100) sends fewer, larger buckets (the default is 25).",
    "FullyShardedDataParallel": "Wrap larger parts of the model (auto_wrap_policy), so that each message is larger.",
}
CHECK_LINK = "Compare with nccl-tests (all_reduce_perf), and look for PCIe between devices in nvidia-smi topo -m."


def _by_link(use: LinkUse | None, wrapper: str | None) -> tuple[str, str]:
    """Return the evidence from the use of the link, and the first thing to do; empty texts without any."""
    if use is None or use.share is None or use.link_bytes_per_s is None:
        return "", ""
    least = "at least " if use.at_least else ""
    told = f"Collectives run at {least}{format_share(use.share)} of the peak of {use.link}"
    if use.share >= FAST_SHARE:
        return f"{told}: only fewer bytes make them faster.", ""
    if use.at_least or use.share > SLOW_SHARE:
        return f"{told}.", ""
    call_s = use.call_bus_bytes / use.bus_bytes_per_s
    told = f"{told}: on average, {format_bytes(use.call_bus_bytes)} take {format_duration(call_s * 1e9)}."
    small = call_s < START_BOUND_S
    return told, f"{LARGER_BUCKETS.get(wrapper or '', 'Send fewer, larger messages.') if small else CHECK_LINK} "


def exposed_ns(analysis: RankAnalysis) -> float:
    """Return the exposed time of collectives in nanoseconds per step, on the device or on the host."""
    communication = analysis.communication
    if communication is None or analysis.breakdown.has_device:
        return analysis.breakdown.category("communication").mean_ns or 0.0
    return communication.host_exposed_ns / max(analysis.breakdown.averaged_steps, 1)


@rule("exposed-communication")
def exposed_communication(analysis: RankAnalysis) -> Problem | None:
    """Find communication that the step waits for.

    On the host, collectives use the processor that computes, so only sending less often helps.
    """
    waits_ns, step = exposed_ns(analysis), step_ns(analysis)
    if not step or waits_ns < MIN_EXPOSED_SHARE * step:
        return None
    title = f"Exposed communication: {format_share(waits_ns / step)} of {whole(analysis)} waits for collectives"
    if analysis.breakdown.has_device:
        compute_ns = analysis.breakdown.category("device_compute").mean_ns or 0.0
        best_ns = min(waits_ns, compute_ns)
        wrapper = next((name for name in analysis.wrappers if name in SEND_LESS), None)
        action, changes = SEND_LESS[wrapper] if wrapper else (SEND_EARLIER, "")
        told, first = _by_link(analysis.link, wrapper)
        action = first + action
        model = "Compute can hide at most its own time, or a quarter if the step waits for the last bucket."
    else:
        told = ""
        title, best_ns, action = f"{title} on the host", 0.75 * waits_ns, SEND_LESS_ON_HOST
        changes = LARGER_BATCH
        model = "Sending a quarter as often saves three quarters. Waits for a slower rank stay."
    return Problem(
        title,
        [
            f"{format_duration(waits_ns)} of {format_duration(step)} is communication that no compute hides.",
            *filter(None, [told]),
        ],
        action,
        SavingRange((best_ns / 4, best_ns), model),
        changes=changes,
    )


BUCKETS = (
    "Give ranks batches of equal size and length in the same step: sort the samples by length, and shuffle groups of "
    "batch_size × ranks."
)
SIMILAR_LENGTHS = "samples of similar length share a batch"
STRAGGLER_FIXES = {
    "input": "Compare the loader of this rank with the others: its disk, its free cores and num_workers. Copy the data "
    "to a local disk if only this rank reads a remote one.",
    "device_compute": f"{BUCKETS} Compare the clocks of the devices: nvidia-smi -q -d CLOCK,PERFORMANCE.",
    "compute": "Look for work that only this rank does in training_step, and for other processes on its cores: top. "
    "Compare the clocks of the processors: lscpu.",
}
WORK = {
    "host_compute": "operators on the host",
    "host_other": "Python and waiting on the host",
    "input": "waiting for input",
}
STRAGGLER_FIX = (
    "Do work that only this rank has less often: logging, checkpoints and metrics on one rank, e.g. "
    "Trainer(log_every_n_steps=200). Its own report (lightning-perf analyze TRACE) shows the phase."
)


@run_rule("straggler")
def straggler_when_recorded(distributed: Distributed) -> Problem | None:
    """Find a rank that holds the others up in the recorded steps."""
    straggler = distributed.straggler
    if straggler is None or not distributed.ranks:
        return None
    saving_ns = distributed.balanced_saving_ns
    category = WORK.get(straggler.category, straggler.category.replace("_", " "))
    evidence = [f"It spends {format_duration(straggler.excess_ns)} per step more than the others in {category}."]
    if straggler.last_arrival_share is not None:
        share = format_share(straggler.last_arrival_share)
        evidence.append(f"It arrives last at {share} of {counted(distributed.matched_collectives, 'collective')}.")
    awaited = distributed.awaited
    if awaited is not None and awaited.rank != straggler.rank:
        evidence.append(f"But {format_share(awaited.share)} of the waits in collectives are for rank {awaited.rank}.")
    holds_up = awaited is not None and awaited.rank == straggler.rank
    return Problem(
        f"Straggler: rank {straggler.rank} {'holds up the others with' if holds_up else 'has the most work,'} "
        f"{format_share(distributed.imbalance)} more work than the mean",
        evidence,
        STRAGGLER_FIXES.get(straggler.category, STRAGGLER_FIX),
        SavingRange(
            (saving_ns / 2, saving_ns),
            "Evenly spread work saves the difference to the mean, or half of it if some causes stay.",
        ),
        changes=SIMILAR_LENGTHS if straggler.category == "device_compute" else "",
    )


PHASE_WORDS = {
    "input": "the next batch",
    "compute": "transfer, forward and optimizer",
    "other": "callbacks, logging and the loop",
}
AT_LEAST = "Backward passes are not compared, because the waits hide in them. Differences there come on top."


def lateness(late: LateRank) -> str:
    """Return how often and how much a rank is late, as a clause.

    Example:
        >>> lateness(LateRank(2, (), 400, None, 0.93, 12.1e6, "input", "", 0.0, 9e6))
        'rank 2 is late in 93.0 % of the steps since step 400, by 12.1 ms in the next batch'
    """
    *most, last = map(str, sorted((late.rank, *late.others)))
    who = f"ranks {', '.join(most)} and {last} are" if most else f"rank {last} is"
    stretch = "the steps" if late.since is None else f"the steps since step {late.since:,}"
    if late.until is not None:
        stretch = f"steps {late.since or 0:,} to {late.until:,}"
    return (
        f"{who} late in {format_share(late.share)} of {stretch}, by {format_duration(late.late_ns)} in "
        f"{PHASE_WORDS[late.phase]}"
    )


@ranks_rule("straggler")
def straggler(run: RanksOverFit) -> Problem | None:
    """Find a rank that is late again and again over the whole fit."""
    late, uneven = run.straggler, run.uneven
    if late is None:
        return None
    by_length = uneven is not None and uneven.rank == late.rank and uneven.rank_ns >= late.saving_ns / 4
    evidence = [f"The others wait {format_duration(late.saving_ns)} per step for it (mean of {run.steps:,} steps)."]
    if late.others:
        evidence.append(f"The figures are those of rank {late.rank}, which is late by the most.")
    if late.place:
        evidence.append(f"{late.place} takes {format_duration(late.place_ns)} per step more than on the others.")
    if by_length and uneven is not None:
        evidence.append(f"Its batches have more {uneven.unit} than those of the others.")
    if not run.whole_work:
        evidence.append("Only waits for batches were compared: the logs do not hold the other phases.")
    elif late.phase == "compute":
        evidence.append(AT_LEAST)
    return Problem(
        f"Straggler: {lateness(late)}",
        evidence,
        BUCKETS if by_length else STRAGGLER_FIXES.get(late.phase, STRAGGLER_FIX),
        SavingRange(
            (late.saving_ns / 2, late.saving_ns),
            "Without the delay, the others do not wait for it. Half of it stays if only some causes are removed.",
        ),
        changes=SIMILAR_LENGTHS if by_length else "",
    )


@ranks_rule("imbalance")
def imbalance(run: RanksOverFit) -> Problem | None:
    """Find ranks that wait for each other, because their batches differ in size.

    Without a cause, no finding: on a busy machine, all ranks are late now and then.
    """
    uneven, least_ns = run.uneven, MIN_SHARE * run.step_ns
    if uneven is None or uneven.wait_ns < least_ns or (run.straggler and run.straggler.saving_ns >= least_ns):
        return None
    return Problem(
        f"Imbalance: {format_share(uneven.wait_ns / run.step_ns)} of the step waits for the rank with the most "
        f"{uneven.unit}",
        [
            (
                f"The largest batch has {format_ratio(uneven.largest)} the {uneven.unit} of the mean rank. "
                f"The time of a rank follows its {uneven.unit} (correlation {uneven.correlation:.2f}, "
                f"{run.steps:,} steps)."
            ),
            AT_LEAST,
        ],
        BUCKETS,
        SavingRange((uneven.wait_ns / 2, uneven.wait_ns), "Equal batches save these waits, similar ones half of them."),
        changes=SIMILAR_LENGTHS,
    )


@rule("data-parallel")
def data_parallel(analysis: RankAnalysis) -> Problem | None:
    """Find ``torch.nn.DataParallel``, which copies the model to every device in each step from one process.

    No saving is estimated: a recording of one process does not show the overlap that several processes would have.
    """
    if "DataParallel" not in analysis.wrappers or step_ns(analysis) <= 0:
        return None
    return Problem(
        "DataParallel: one process drives all devices",
        "Each step copies the model to every device and gathers the outputs on one of them.",
        'Use one process per device: Trainer(strategy="ddp", devices=4) without the wrapper, and divide batch_size by '
        "the number of devices: each process takes a batch of its own.",
        severity="high",
        changes="without a smaller batch_size, each update averages over more samples",
    )


STOP_FLAG_FIX = (
    "Do more per batch: raise batch_size rather than accumulate_grad_batches, which broadcasts for each of its "
    "batches. No option turns the broadcast off. If your launcher sends SIGTERM to every rank, as SLURM and torchrun "
    "do, you can replace the method before training: from lightning.pytorch.loops.training_epoch_loop import "
    "_TrainingEpochLoop; _TrainingEpochLoop._broadcast_sigterm_tensor = lambda self: None. The method is private: "
    "check this line after each update of Lightning."
)


@rule("stop-flags")
def stop_flags(analysis: RankAnalysis) -> Problem | None:
    """Find the time of Lightning's broadcast of a stop flag.

    All ranks meet there, so it includes the wait for slower ranks, which would come at the next collective anyway. The
    rank that waits least therefore decides.
    """
    flags = analysis.stop_flags
    if flags is None:
        return None
    steps = max(flags.steps, 1)
    exposed_ns = flags.exposed_ns / steps
    per, calls = each(analysis), flags.calls / steps
    times = "once" if calls == 1 else f"{format_count(calls)} times"
    return Problem(
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
        STOP_FLAG_FIX,
        SavingRange(
            (exposed_ns / 2, exposed_ns),
            "Half to all of the wait on the rank that waits least. The longer waits of other ranks stay.",
        ),
        changes=LARGER_BATCH,
    )


def _flag_ns(analysis: RankAnalysis) -> float:
    flags = analysis.stop_flags
    return 0.0 if flags is None else flags.exposed_ns / max(flags.steps, 1)


SHARED_WAITS = {"exposed-communication": exposed_ns, "stop-flags": _flag_ns}
"""Rules about waits that end for all ranks at once, and the length of a rank's waits. The rank that arrives last has
only the transfer, and the others also wait for that rank. The rank with the shortest waits therefore decides."""
