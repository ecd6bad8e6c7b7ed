"""What a training that waits for data should change, by what is known about its loader and the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning_perf.analysis.host.loading import Loading
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.trace.description import DataLoading, Processor
from lightning_perf.units import format_count, format_duration

__all__ = ["Advice", "advise"]

DEFAULT_WORKERS = 4
"""Where the number of cores is not known."""

FAST_BATCH_NS = 1_000_000
"""A batch that takes less is made faster than a worker process hands it over and the next one is asked for."""

REPEATED = (
    "The dataset is an IterableDataset: each worker process would yield all of it once more, unless it shares the work "
    "by torch.utils.data.get_worker_info()."
)

CHEAPER = "decode smaller images, cache decoded ones, or move augmentation to the device"
CHEAPER_HERE = "decode smaller images, cache decoded ones, or leave augmentation out where it does not help"


@dataclass(frozen=True)
class Advice:
    """What to change.

    Attributes:
        action: The change, down to the arguments.
        evidence: What speaks for it or against another one, a sentence each.
        may_win_nothing: Whether the saving may be zero.
        model: How the saving was predicted, where the usual model of worker processes does not apply.
    """

    action: str
    evidence: tuple[str, ...] = ()
    may_win_nothing: bool = False
    model: str = ""


def advise(analysis: RankAnalysis, wait_ns: float, step_ns: float) -> Advice:
    """Choose what to change.

    Args:
        analysis: The rank; its recording says how its loader works, if `PerfCallback` made it.
        wait_ns: The wait per step.
        step_ns: The step time.
    """
    loading, facts = analysis.loading, analysis.metadata.loader
    if loading is None:
        return Advice("")
    if facts is not None and facts.uses_model:
        return Advice(
            f"Make each batch cheaper: {_cheaper(analysis)}. Leave num_workers=0.",
            ("The data depend on the model: worker processes would work with a copy of it that never learns.",),
            may_win_nothing=True,
            model="A cheaper batch shortens the wait, by as much as it gets cheaper.",
        )
    if facts is not None and facts.kind == "iterable" and not facts.workers:
        return Advice(
            f"Make each batch cheaper: {_cheaper(analysis)}; or yield whole batches and set batch_size=None.",
            (REPEATED,),
            may_win_nothing=True,
            model="A cheaper batch shortens the wait, by as much as it gets cheaper.",
        )
    if facts is not None and facts.kind == "other":
        return Advice(
            f"Make each batch cheaper: {_cheaper(analysis)}; or make batches ahead of time in a thread or process.",
            ("The batches do not come from a torch DataLoader.",),
            may_win_nothing=True,
            model="A cheaper batch shortens the wait, by as much as it gets cheaper.",
        )
    if loading.loader == "workers" or (facts is not None and facts.workers):
        return _more_workers(analysis, facts)
    batch_ns = _batch_ns(analysis, loading, wait_ns)
    if facts is not None and not facts.batched and (facts.in_memory or batch_ns < FAST_BATCH_NS):
        return _whole_batches(facts, batch_ns)
    return _workers(analysis, facts, batch_ns * _fetches(loading), step_ns - wait_ns)


def _fetches(loading: Loading) -> float:
    return max(loading.fetches, 1) / max(loading.steps, 1)


def _batch_ns(analysis: RankAnalysis, loading: Loading, wait_ns: float) -> float:
    """What a batch costs the loader: on the processor all of it is waited for."""
    if analysis.breakdown.has_device and loading.fetch_ns:
        return loading.fetch_ns / max(loading.fetches, 1)
    return wait_ns / _fetches(loading)


def _cheaper(analysis: RankAnalysis) -> str:
    return CHEAPER if analysis.breakdown.has_device else CHEAPER_HERE


def _whole_batches(facts: DataLoading, batch_ns: float) -> Advice:
    size = facts.batch_size or 1
    cost = (
        f"A batch takes {format_duration(batch_ns)}, {format_duration(batch_ns / size)} per sample: worker processes "
        "would cost as much for handing it over."
    )
    if not facts.in_memory:
        return Advice(
            "Fetch whole batches: give the dataset a __getitems__(self, indices) that makes the samples of a batch at "
            "once, and returns them as a list.",
            (cost,),
            may_win_nothing=True,
            model="Indexing once per batch leaves out the calls per sample; perhaps they are not what takes the time.",
        )
    return Advice(
        "Fetch whole batches: DataLoader(dataset, batch_size=None, sampler=BatchSampler(RandomSampler(dataset), "
        f"batch_size={size}, drop_last=False)); with SequentialSampler where batches are not shuffled.",
        ("The dataset holds tensors in memory, and the loader takes them sample by sample.", cost),
        model="Indexing once per batch instead of once per sample leaves at most half of the wait.",
    )


def _workers(analysis: RankAnalysis, facts: DataLoading | None, fetch_ns: float, rest_ns: float) -> Advice:
    """Worker processes: as many as keep up with the rest of the step, and no more than there are cores."""
    processor = analysis.metadata.processor
    cores = processor.cores if processor is not None else None
    arguments, evidence = [], []
    count = DEFAULT_WORKERS
    if cores:
        needed = math.ceil(fetch_ns / rest_ns) if rest_ns > 0 else cores
        count = max(1, min(needed, cores - 1))
        evidence.append(
            f"Making the data of a step takes {format_duration(fetch_ns)}, the rest of it "
            f"{format_duration(max(rest_ns, 0.0))}: {_processes(needed)} would keep up, on {format_count(cores)} "
            f"core{'' if cores == 1 else 's'}."
        )
    arguments.append(f"num_workers={count}")
    if analysis.breakdown.has_device and not (facts is not None and facts.pin_memory):
        arguments.append("pin_memory=True")
    arguments.append("persistent_workers=True")
    competing = processor is not None and _compete(processor, count)
    action = (
        f"Load in worker processes: DataLoader(…, {', '.join(arguments)}); raise num_workers while the wait shrinks."
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
        evidence.append(f"{_processes(workers)} already take all of the {format_count(cores)} cores.")
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
    """Whether workers take cores that torch computes on."""
    if not processor.trains or not processor.cores or not processor.threads:
        return False
    return min(processor.threads, processor.cores) + workers > processor.cores


def _warning(processor: Processor, workers: int) -> str:
    cores, threads = processor.cores or 1, processor.threads or 1
    fewer = max(1, cores - workers)
    instead = f" Give up some of torch's: torch.set_num_threads({fewer})." if fewer < threads else ""
    return (
        f"{_processes(workers)} and torch's {format_count(threads)} thread{'' if threads == 1 else 's'} compete for "
        f"{format_count(cores)} core{'' if cores == 1 else 's'}: the training may get slower.{instead}"
    )


def _processes(number: int) -> str:
    return f"{format_count(number)} worker process{'' if number == 1 else 'es'}"
