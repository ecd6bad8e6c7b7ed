"""Advice for trainings that wait for data, by the facts about the loader and the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from lightning_perf.analysis.host.loading import Loading
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import MIN_SHARE
from lightning_perf.findings.host.batch_transfer import Transfer, batch_transfer
from lightning_perf.findings.savings import counted
from lightning_perf.trace.description import DataLoading, Processor
from lightning_perf.units import format_count, format_duration

DEFAULT_WORKERS = 4
"""Workers to advise if the number of cores is unknown."""

FAST_BATCH_NS = 1_000_000
"""Cost of a batch below which a worker process takes longer to deliver it than the loader takes to make it."""

REPEATED = (
    "The dataset is an IterableDataset: each worker process would yield all of it again, unless it shares the work "
    "by torch.utils.data.get_worker_info()."
)

CHEAPER = "decode smaller images, cache decoded ones, or move augmentation to the device"
CHEAPER_HERE = "decode smaller images, cache decoded ones, or leave out augmentation that does not help"


COLD_SHARE = 0.1
"""Share of the wait that may be saved in addition if the processor itself trains: after a wait its caches are cold (1
to 6 % measured, benchmarks/results/planted.md)."""

MANY_TENSORS = 8
"""Tensors of a batch from which sending fewer of them helps."""

MEASURE = "Measure before you use worker processes"


@dataclass(frozen=True)
class Advice:
    """Advice for one training.

    Attributes:
        action: The change, down to the arguments.
        saving_ns: Least and most saving in nanoseconds per step.
        model: How the saving was estimated.
        evidence: Reasons for it or against another change, one sentence each.
    """

    action: str
    saving_ns: tuple[float, float]
    model: str
    evidence: tuple[str, ...] = ()


def advise(analysis: RankAnalysis, wait_ns: float, step_ns: float) -> Advice:
    """Choose the change that fits the loader.

    Args:
        analysis: The rank. If `PerfCallback` made its recording, that describes the loader.
        wait_ns: The wait per step.
        step_ns: The step time.
    """
    loading, facts = analysis.loading, analysis.metadata.loader
    if loading is None:
        return Advice("", (0.0, 0.0), "")
    if facts is not None and facts.uses_model:
        return _cheaper_batches(
            analysis,
            wait_ns,
            " Leave num_workers=0.",
            "The data depend on the model: worker processes would use a copy of it that never learns.",
        )
    if facts is not None and facts.kind == "iterable" and not facts.workers:
        return _cheaper_batches(analysis, wait_ns, " Or yield whole batches and set batch_size=None.", REPEATED)
    if facts is not None and facts.kind == "other":
        return _cheaper_batches(
            analysis,
            wait_ns,
            " Or make batches ahead of time in a thread or process.",
            "The batches do not come from a torch DataLoader.",
        )
    if loading.loader == "workers" or (facts is not None and facts.workers):
        return _more_workers(analysis, facts, wait_ns, step_ns)
    batch_ns = _batch_ns(analysis, loading, wait_ns)
    if facts is not None and not facts.batched and _is_fast(facts, batch_ns):
        return _whole_batches(facts, batch_ns, (wait_ns / 2, _most_ns(analysis, wait_ns)))
    return _workers(analysis, _Step(wait_ns, step_ns, batch_ns, _fetches(loading)))


@dataclass(frozen=True)
class _Step:
    """The times of a step and of its batches.

    Attributes:
        wait_ns: The wait per step.
        step_ns: The step time.
        batch_ns: Time in which the loader makes a batch.
        fetches: Batches per step.
    """

    wait_ns: float
    step_ns: float
    batch_ns: float
    fetches: float

    @property
    def rest_ns(self) -> float:
        """Time of the step without the wait."""
        return max(0.0, self.step_ns - self.wait_ns)


def _most_ns(analysis: RankAnalysis, wait_ns: float) -> float:
    """Return the most that a step without its wait saves."""
    return wait_ns if analysis.breakdown.has_device else wait_ns * (1 + COLD_SHARE)


def _cheaper_batches(analysis: RankAnalysis, wait_ns: float, instead: str, *evidence: str) -> Advice:
    return Advice(
        f"Make each batch cheaper: {_cheaper(analysis)}.{instead}",
        (0.0, _most_ns(analysis, wait_ns)),
        "The wait gets shorter by as much as a batch gets cheaper.",
        evidence,
    )


def _is_fast(facts: DataLoading, batch_ns: float) -> bool:
    """Return whether the loader, and not the making of samples, takes the time of a batch."""
    return batch_ns < FAST_BATCH_NS or (bool(facts.in_memory) and facts.collate is None)


def _fetches(loading: Loading) -> float:
    return max(loading.fetches, 1) / max(loading.steps, 1)


def _batch_ns(analysis: RankAnalysis, loading: Loading, wait_ns: float) -> float:
    """Return the cost of a batch in the loader. On a processor the training waits for all of it."""
    if analysis.breakdown.has_device and loading.fetch_ns:
        return loading.fetch_ns / max(loading.fetches, 1)
    return wait_ns / _fetches(loading)


def _cheaper(analysis: RankAnalysis) -> str:
    return CHEAPER if analysis.breakdown.has_device else CHEAPER_HERE


def _whole_batches(facts: DataLoading, batch_ns: float, saving_ns: tuple[float, float]) -> Advice:
    size = facts.batch_size or 1
    cost = (
        f"A batch takes {format_duration(batch_ns)}, {format_duration(batch_ns / size)} per sample. Worker processes "
        "would need as long to deliver it."
    )
    if not facts.in_memory:
        return Advice(
            "Fetch whole batches: give the dataset a method __getitems__(self, indices) that returns all samples of a "
            "batch as a list.",
            (0.0, saving_ns[1]),
            "Indexing once per batch saves the calls per sample, which may not be the slow part.",
            (cost,),
        )
    return Advice(
        "Fetch whole batches: DataLoader(dataset, batch_size=None, sampler=BatchSampler(RandomSampler(dataset), "
        f"batch_size={size}, drop_last=False)). Use SequentialSampler if you do not shuffle.",
        saving_ns,
        "Indexing once per batch instead of once per sample saves at least half of the wait.",
        ("The dataset holds tensors in memory, and the loader takes them one sample at a time.", cost),
    )


def _workers(analysis: RankAnalysis, step: _Step) -> Advice:
    """Advise as many worker processes as keep up with the rest of the step, but fewer than cores.

    They are not advised if sending batches is likely to cost as much as they save. If it may, the advice is to measure.
    """
    facts, processor = analysis.metadata.loader, analysis.metadata.processor
    cores = processor.cores if processor is not None else None
    count, evidence = DEFAULT_WORKERS, list[str]()
    fetch_ns = step.batch_ns * step.fetches
    if cores:
        needed = math.ceil(fetch_ns / step.rest_ns) if step.rest_ns > 0 else cores
        count = max(1, min(needed, cores - 1))
        evidence.append(
            f"Loading the data of each step takes {format_duration(fetch_ns)}, the rest of the step "
            f"{format_duration(step.rest_ns)}. {_processes(needed)} would keep up, and there "
            f"{'is' if cores == 1 else 'are'} {counted(cores, 'core')}."
        )
    transfer = batch_transfer(analysis)
    low_ns, high_ns = _worker_saving(analysis, step, transfer, count)
    if transfer is not None:
        evidence.append(transfer.text)
        if (low_ns + high_ns) / 2 < MIN_SHARE * step.step_ns:
            evidence.append("A worker process would save less than that, or nothing.")
            return _without_workers(analysis, step.wait_ns, evidence)
    arguments = [f"num_workers={count}"]
    if analysis.breakdown.has_device and not (facts is not None and facts.pin_memory):
        arguments.append("pin_memory=True")
    arguments.append("persistent_workers=True")
    loader = f"DataLoader(…, {', '.join(arguments)})"
    model = (
        "Batches made by workers leave no wait, and no cold caches after it (up to a tenth more). Half of the wait "
        "stays if workers compete for cores."
        if not analysis.breakdown.has_device
        else "Batches made while the device computes leave no wait, or half of it if workers compete for cores."
    )
    if transfer is not None:
        model += " Sending batches between processes is subtracted."
    if processor is not None and _compete(processor, count):
        evidence.append(_warning(processor, count))
        action = f"{MEASURE}: lightning-perf tune tries {loader}."
        return Advice(action, (0.0, high_ns), model, tuple(evidence))
    if low_ns <= 0:
        if transfer is None:
            evidence.append(
                "The recording does not show the contents of a batch. Many small tensors take longer to send between "
                "processes than to make."
            )
        action = (
            f"{MEASURE}: lightning-perf data --step-ms {step.rest_ns / 1e6:.3g} PKG:NAME. If loading takes longer than "
            f"the transfer, use {loader}."
        )
        return Advice(action, (0.0, high_ns), model, tuple(evidence))
    action = f"Load in worker processes: {loader}. Raise num_workers while the wait shrinks."
    return Advice(action, (low_ns, high_ns), model, tuple(evidence))


def _worker_saving(analysis: RankAnalysis, step: _Step, transfer: Transfer | None, workers: int) -> tuple[float, float]:
    """Return the least and the most that worker processes save. The least is negative if they may cost time.

    A step is as long as the workers need for its batches, or as its rest and receiving the batches. The workers cost
    the training an unknown time, so the least is half of that.
    """
    sent_ns, received_ns = (0.0, 0.0), (0.0, 0.0)
    if transfer is not None:
        sent_ns = (step.fetches * transfer.sent_ns[0], step.fetches * transfer.sent_ns[1])
        # Computing on a device hides how long the training thread receives.
        least_ns = 0.0 if analysis.breakdown.has_device else step.fetches * transfer.received_ns[0]
        received_ns = (least_ns, step.fetches * transfer.received_ns[1])
    fetch_ns = step.batch_ns * step.fetches
    low_ns, high_ns = (step.step_ns - (fetch_ns + sent) / workers for sent in reversed(sent_ns))
    low_ns = min(step.wait_ns, low_ns) / 2 - received_ns[1]
    high_ns = min(_most_ns(analysis, step.wait_ns), high_ns) - received_ns[0]
    return (min(low_ns, high_ns) if transfer is not None else 0.0), max(0.0, high_ns)


def _without_workers(analysis: RankAnalysis, wait_ns: float, evidence: list[str]) -> Advice:
    """Advise cheaper batches where processes would lose more time for sending batches than they save."""
    batch = analysis.metadata.batch
    advice = _cheaper_batches(analysis, wait_ns, " Leave num_workers=0.", *evidence)
    if batch is None or batch.tensors < MANY_TENSORS:
        return advice
    few = "Make fewer, larger tensors: concatenate those of a batch in collate_fn. Then measure worker processes: "
    return replace(advice, action=f"{few}lightning-perf data PKG:NAME. Until then, leave num_workers=0.")


def _more_workers(analysis: RankAnalysis, facts: DataLoading | None, wait_ns: float, step_ns: float) -> Advice:
    processor = analysis.metadata.processor
    cores = processor.cores if processor is not None else None
    workers = facts.workers if facts is not None else None
    # The loader needs a whole step for a batch. Twice the workers at best halve that.
    best_ns = min(wait_ns, step_ns / 2)
    model = "Twice the workers halve the time between batches at best, and save half of that if cores allow it."
    transfer, loading = batch_transfer(analysis), analysis.loading
    if transfer is not None and transfer.measured and loading is not None and not analysis.breakdown.has_device:
        received_ns = transfer.received_ns[0] * _fetches(loading)
        if received_ns >= wait_ns / 2:
            return Advice(
                "Send fewer, larger tensors: concatenate those of a batch in collate_fn. Or measure num_workers=0: "
                "lightning-perf tune tries it.",
                (0.0, best_ns),
                "The wait gets shorter by as much as a batch gets cheaper to send.",
                (f"{transfer.text} More worker processes do not shorten that.",),
            )
    parts, evidence = [], []
    enough = cores is not None and workers is not None and workers >= max(1, cores - 1)
    if not enough:
        parts.append("raise num_workers towards the number of cores")
    elif cores is not None and workers is not None:
        evidence.append(f"{_processes(workers)} already use all of the {format_count(cores)} cores.")
    if facts is None or not facts.persistent_workers:
        parts.append("set persistent_workers=True")
    if analysis.breakdown.has_device and facts is not None and not facts.pin_memory:
        parts.append("set pin_memory=True")
    parts.append(f"make each batch cheaper: {_cheaper(analysis)}")
    text = f"{', '.join(parts[:-1])}, and {parts[-1]}" if len(parts) > 1 else parts[0]
    more = (workers or 0) + 1
    competing = processor is not None and workers is not None and (enough or _compete(processor, more))
    if competing and processor is not None and not enough:
        evidence.append(_warning(processor, more))
    return Advice(f"{text[0].upper()}{text[1:]}.", (0.0 if competing else best_ns / 2, best_ns), model, tuple(evidence))


def _compete(processor: Processor, workers: int) -> bool:
    """Return whether workers would take cores that torch computes on."""
    if not processor.trains or not processor.cores or not processor.threads:
        return False
    return min(processor.threads, processor.cores) + workers > processor.cores


def _warning(processor: Processor, workers: int) -> str:
    cores, threads = processor.cores or 1, processor.threads or 1
    fewer = max(1, cores - workers)
    instead = f" Use fewer threads: torch.set_num_threads({fewer})." if fewer < threads else ""
    return (
        f"{_processes(workers)} and {counted(threads, 'thread')} of torch compete for {counted(cores, 'core')}: the "
        f"training may get slower.{instead}"
    )


def _processes(number: int) -> str:
    return counted(number, "worker process", "worker processes")
