"""Advice for trainings that wait for data, by the facts about the loader and the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning_perf.analysis.host.loading import Loading
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.savings import counted
from lightning_perf.trace.description import DataLoading, Processor
from lightning_perf.units import format_count, format_duration

__all__ = ["Advice", "advise"]

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


@dataclass(frozen=True)
class Advice:
    """Advice for one training.

    Attributes:
        action: The change, down to the arguments.
        evidence: Reasons for it or against another change, one sentence each.
        may_win_nothing: Whether the saving may be zero.
        model: How the saving was estimated, if the usual model of worker processes does not apply.
    """

    action: str
    evidence: tuple[str, ...] = ()
    may_win_nothing: bool = False
    model: str = ""


def advise(analysis: RankAnalysis, wait_ns: float, step_ns: float) -> Advice:
    """Choose the change that fits the loader.

    Args:
        analysis: The rank. If `PerfCallback` made its recording, that describes the loader.
        wait_ns: The wait per step.
        step_ns: The step time.
    """
    loading, facts = analysis.loading, analysis.metadata.loader
    if loading is None:
        return Advice("")
    if facts is not None and facts.uses_model:
        return Advice(
            f"Make each batch cheaper: {_cheaper(analysis)}. Leave num_workers=0.",
            ("The data depend on the model: worker processes would use a copy of it that never learns.",),
            may_win_nothing=True,
            model="The wait gets shorter by as much as a batch gets cheaper.",
        )
    if facts is not None and facts.kind == "iterable" and not facts.workers:
        return Advice(
            f"Make each batch cheaper: {_cheaper(analysis)}. Or yield whole batches and set batch_size=None.",
            (REPEATED,),
            may_win_nothing=True,
            model="The wait gets shorter by as much as a batch gets cheaper.",
        )
    if facts is not None and facts.kind == "other":
        return Advice(
            f"Make each batch cheaper: {_cheaper(analysis)}. Or make batches ahead of time in a thread or process.",
            ("The batches do not come from a torch DataLoader.",),
            may_win_nothing=True,
            model="The wait gets shorter by as much as a batch gets cheaper.",
        )
    if loading.loader == "workers" or (facts is not None and facts.workers):
        return _more_workers(analysis, facts)
    batch_ns = _batch_ns(analysis, loading, wait_ns)
    if facts is not None and not facts.batched and _is_fast(facts, batch_ns):
        return _whole_batches(facts, batch_ns)
    return _workers(analysis, facts, batch_ns * _fetches(loading), step_ns - wait_ns)


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


def _whole_batches(facts: DataLoading, batch_ns: float) -> Advice:
    size = facts.batch_size or 1
    cost = (
        f"A batch takes {format_duration(batch_ns)}, {format_duration(batch_ns / size)} per sample. Worker processes "
        "would need as long to deliver it."
    )
    if not facts.in_memory:
        return Advice(
            "Fetch whole batches: give the dataset a method __getitems__(self, indices) that returns all samples of a "
            "batch as a list.",
            (cost,),
            may_win_nothing=True,
            model="Indexing once per batch saves the calls per sample, which may not be the slow part.",
        )
    return Advice(
        "Fetch whole batches: DataLoader(dataset, batch_size=None, sampler=BatchSampler(RandomSampler(dataset), "
        f"batch_size={size}, drop_last=False)). Use SequentialSampler if you do not shuffle.",
        ("The dataset holds tensors in memory, and the loader takes them one sample at a time.", cost),
        model="Indexing once per batch instead of once per sample saves at least half of the wait.",
    )


def _workers(analysis: RankAnalysis, facts: DataLoading | None, fetch_ns: float, rest_ns: float) -> Advice:
    """Advise as many worker processes as keep up with the rest of the step, but fewer than cores."""
    processor = analysis.metadata.processor
    cores = processor.cores if processor is not None else None
    arguments, evidence = [], []
    count = DEFAULT_WORKERS
    if cores:
        needed = math.ceil(fetch_ns / rest_ns) if rest_ns > 0 else cores
        count = max(1, min(needed, cores - 1))
        evidence.append(
            f"Loading the data of each step takes {format_duration(fetch_ns)}, the rest of the step "
            f"{format_duration(max(rest_ns, 0.0))}. {_processes(needed)} would keep up, and there "
            f"{'is' if cores == 1 else 'are'} {counted(cores, 'core')}."
        )
    arguments.append(f"num_workers={count}")
    if analysis.breakdown.has_device and not (facts is not None and facts.pin_memory):
        arguments.append("pin_memory=True")
    arguments.append("persistent_workers=True")
    competing = processor is not None and _compete(processor, count)
    action = (
        f"Load in worker processes: DataLoader(…, {', '.join(arguments)}). Raise num_workers while the wait shrinks."
    )
    if competing and processor is not None:
        evidence.append(_warning(processor, count))
        action = f"Try worker processes and measure: DataLoader(…, {', '.join(arguments)})."
    return Advice(action, tuple(evidence), may_win_nothing=competing)


def _more_workers(analysis: RankAnalysis, facts: DataLoading | None) -> Advice:
    processor = analysis.metadata.processor
    cores = processor.cores if processor is not None else None
    workers = facts.workers if facts is not None else None
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
    return Advice(f"{text[0].upper()}{text[1:]}.", tuple(evidence), may_win_nothing=competing)


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
