"""Rules about the loading of batches: waits for data, with advice for the loader, and copies to the device."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.analysis.host.loading import Loading, LoadingCost
from lightning_perf.analysis.host.waits import function_text
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.conditions import BUSY_WAIT
from lightning_perf.findings.finding import MIN_SHARE, Problem, SavingRange, rule
from lightning_perf.findings.savings import each, loader_of, processor_of
from lightning_perf.findings.worker_time import OTHER_THAN_MORE, Cause, Transfer, batch_transfer, explain_workers
from lightning_perf.trace.description import Processor
from lightning_perf.units import counted, format_bandwidth, format_bytes, format_duration, format_share

MIN_WAIT_SHARE = 0.05
"""Waits below this share of the step are not reported (XProf's threshold for a moderate input problem)."""

OPERATOR_SHARE = 0.5
"""Share of operators in the fetch from which their work on tensors takes the time."""


BATCH_MAKERS: dict[str | None, str] = {
    "in_process": (
        "The DataLoader makes batches in the training process (num_workers=0), so loading and training alternate."
    ),
    "workers": "Worker processes of the DataLoader make the batches.",
}
UNKNOWN_MAKER = "The recording does not show whether the loader has worker processes."
"""Who makes the batches, as a sentence. For loaders other than torch's, the advice itself says it."""


@rule("input-bound")
def input_bound(analysis: RankAnalysis) -> Problem | None:
    """Find steps that wait for input, by the recording."""
    breakdown = analysis.breakdown
    return waits_for_input(analysis, breakdown.category("input").mean_ns or 0.0, breakdown.wall.mean_ns or 0.0)


def waits_for_input(analysis: RankAnalysis, wait_ns: float, step_ns: float) -> Problem | None:
    """Find steps that wait for input, and whether the number of workers or the cost of a batch is the reason.

    Only waits that no device work hides count.
    """
    loading = analysis.loading
    if loading is None or analysis.breakdown.truncated or not wait_ns or not step_ns:
        return None
    if wait_ns < MIN_WAIT_SHARE * step_ns:
        return None
    advised = _advise(_Wait(analysis, loading, wait_ns, step_ns))
    waited = f"{format_duration(wait_ns)} of {format_duration(step_ns)}"
    evidence = [f"In the mean step, the training thread waits {waited} for its batch."]
    if loading.fetch_ns and loader_of(analysis).kind != "other":
        evidence.append(BATCH_MAKERS.get(loading.loader, UNKNOWN_MAKER))
        share = loading.operator_ns / loading.fetch_ns
        if share >= OPERATOR_SHARE:
            evidence.append(f"Operators on tensors fill {format_share(share)} of the fetch on the training thread.")
    whole = "the step" if analysis.breakdown.marked else "the recording"
    title = f"Input-bound: {format_share(wait_ns / step_ns)} of {whole} waits for data"
    return replace(advised, title=title, evidence=[*evidence, _batch_source(analysis), *advised.evidence])


def _batch_source(analysis: RankAnalysis) -> str:
    """Return a sentence about the code that makes the batches; empty if the recording does not name it."""
    facts = loader_of(analysis)
    fetch = analysis.pauses.phase("fetch") if analysis.pauses is not None else None
    if facts.workers:
        return ""
    if fetch is not None and fetch.function is not None:
        return f"Most of the fetch is in {function_text(fetch.function)}."
    if facts.dataset and facts.collate:
        return f"Batches come from the dataset {facts.dataset} and the collate_fn {facts.collate}."
    return ""


DEFAULT_WORKERS = 4
"""Workers to advise if the number of cores is unknown."""

FAST_BATCH_NS = 1_000_000
"""Cost of a batch below which a worker process takes longer to deliver it than the loader takes to make it."""

REPEATED = (
    "The dataset is an IterableDataset. One worker process yields it once. Each further one yields all of it again, "
    "unless they share the work by torch.utils.data.get_worker_info()."
)

CHEAPER = "cache decoded images, decode smaller ones, or move augmentation to the device"
CHEAPER_HERE = "cache decoded images, decode smaller ones, or leave out augmentation that does not help"
OTHER_DATA = "smaller images or other augmentation are other data, so compare your metric"


COLD_SHARE = 0.1
"""Share of the wait that may be saved in addition if the processor itself trains: after a wait its caches are cold (1
to 6 % measured, benchmarks/results/planted.md)."""

MANY_TENSORS = 8
"""Tensors of a batch from which sending fewer of them helps."""

MEASURE = "Measure before you use worker processes"

WITHOUT_WORKERS = "Measure num_workers=0: lightning-perf tune tries it. A batch has few tensors already."
"""The advice if receiving batches is slow, although a batch has few tensors."""


class _Wait(Struct, frozen=True):
    """A step that waits for its batch."""

    analysis: RankAnalysis
    loading: Loading
    wait_ns: float
    step_ns: float

    @property
    def on_device(self) -> bool:
        """Whether a device trains."""
        return self.analysis.breakdown.has_device

    @property
    def rest_ns(self) -> float:
        """Time of the step without the wait."""
        return max(0.0, self.step_ns - self.wait_ns)

    @property
    def most_ns(self) -> float:
        """The most that a step without its wait saves."""
        return self.wait_ns if self.on_device else self.wait_ns * (1 + COLD_SHARE)

    @property
    def fetches(self) -> float:
        """Batches of a step."""
        return max(self.loading.fetches, 1) / max(self.loading.steps, 1)

    @property
    def fetch_ns(self) -> float:
        """Time to make the batches of a step in the training process. A processor waits for all of it.

        A device may hide a part of it, in the steps of the run as large a one as in the recorded steps.
        """
        waited_ns = self.analysis.breakdown.category("input").mean_ns
        if not self.on_device or not self.loading.fetch_ns or not waited_ns:
            return self.wait_ns
        batch_ns = self.loading.fetch_ns / max(self.loading.fetches, 1)
        return batch_ns * self.fetches * self.wait_ns / waited_ns

    @property
    def has_workers(self) -> bool:
        """Whether worker processes make the batches."""
        return self.loading.loader == "workers" or bool(loader_of(self.analysis).workers)

    @property
    def cost(self) -> LoadingCost:
        """The cost of making the batches of a step, in the training process or in the workers."""
        processor = processor_of(self.analysis)
        # While the training waits, all workers are busy: each needs as many steps for a batch as there are workers.
        workers = loader_of(self.analysis).workers or 1
        loading_ns = workers * self.step_ns if self.has_workers else self.fetch_ns
        training_cores = (processor.threads or 0) if processor.trains else 0
        busy = 1.0 if self.busy is None else self.busy
        return LoadingCost(loading_ns, busy, self.rest_ns, processor.cores, training_cores)

    @property
    def busy(self) -> float | None:
        """The share of making a batch for which it needs a core; None if it was not measured."""
        processor = processor_of(self.analysis)
        if self.has_workers:
            return _busy_worker(processor)
        return _busy_in_fetch(processor, self.fetch_ns, self.step_ns)


def _wait_in(analysis: RankAnalysis) -> _Wait | None:
    wait_ns, step_ns = analysis.breakdown.category("input").mean_ns or 0.0, analysis.breakdown.wall.mean_ns or 0.0
    if analysis.loading is None or not step_ns or not analysis.loading.fetch_ns:
        return None
    return _Wait(analysis, analysis.loading, wait_ns, step_ns)


def advised_workers(analysis: RankAnalysis) -> int | None:
    """Return how many worker processes keep up with the recorded steps, as in the advice on waits; None if unknown."""
    wait = _wait_in(analysis)
    return None if wait is None else wait.cost.advised


def _advice(
    action: str, saving_ns: tuple[float, float], model: str, evidence: Sequence[str] = (), changes: str = ""
) -> Problem:
    """Return a change with its saving, and the reasons for it or against another one. The title follows."""
    return Problem("", evidence, action, SavingRange(saving_ns, model), changes=changes)


def _advise(wait: _Wait) -> Problem:
    """Choose the change that fits the loader."""
    facts = loader_of(wait.analysis)
    if facts.uses_model:
        copied = "The data depend on the model: worker processes would use a copy of it that never learns."
        return _cheaper_batches(wait, " Leave num_workers=0.", copied)
    if facts.kind == "other":
        ahead = " Or make batches ahead of time in a thread or process."
        return _cheaper_batches(wait, ahead, "The batches do not come from a torch DataLoader.")
    if wait.has_workers:
        return _more_workers(wait)
    # The loader, and not the making of samples, takes the time of a fast batch.
    is_fast = wait.fetch_ns / wait.fetches < FAST_BATCH_NS or (bool(facts.in_memory) and facts.collate is None)
    if wait.analysis.metadata.loader is not None and not facts.batched and is_fast:
        return _whole_batches(wait)
    return _workers(wait)


def _cheaper_batches(wait: _Wait, instead: str, *evidence: str) -> Problem:
    return _advice(
        f"Make each batch cheaper: {CHEAPER if wait.on_device else CHEAPER_HERE}.{instead}",
        (0.0, wait.most_ns),
        "The wait gets shorter by as much as a batch gets cheaper.",
        evidence,
        OTHER_DATA,
    )


def _whole_batches(wait: _Wait) -> Problem:
    facts, batch_ns = loader_of(wait.analysis), wait.fetch_ns / wait.fetches
    size = facts.batch_size
    per_sample = f", {format_duration(batch_ns / size)} per sample" if size else ""
    cost = f"A batch takes {format_duration(batch_ns)}{per_sample}. Worker processes would need as long to deliver it."
    if not facts.in_memory:
        return _advice(
            "Fetch whole batches: give the dataset a method __getitems__(self, indices) that returns all samples of a "
            "batch as a list.",
            (0.0, wait.most_ns),
            "Indexing once per batch saves the calls per sample, which may not be the slow part.",
            (cost,),
        )
    known = facts.sampler is None and facts.order in ("RandomSampler", "SequentialSampler")
    return _advice(
        "Fetch whole batches: DataLoader(dataset, batch_size=None, sampler=BatchSampler("
        f"{facts.order if known else 'RandomSampler'}(dataset), batch_size={size or '…'}, drop_last=False)).",
        (wait.wait_ns / 2, wait.most_ns),
        "Indexing once per batch instead of once per sample saves at least half of the wait.",
        ("The dataset holds tensors in memory, and the loader takes them one sample at a time.", cost),
        "" if known else "RandomSampler shuffles all samples, so use your own sampler if yours does something else",
    )


def _workers(wait: _Wait) -> Problem:
    """Advise as many worker processes as keep up with the rest of the step, but fewer than cores.

    They are not advised if sending batches is likely to cost as much as they save. If it may, the advice is to measure.
    """
    processor, cost = processor_of(wait.analysis), wait.cost
    count = needed = DEFAULT_WORKERS
    busy, iterable = wait.busy, loader_of(wait.analysis).kind == "iterable"
    evidence = [REPEATED] if iterable else list[str]()
    if processor.cores:
        needed, count = cost.needed, cost.advised
        waits = "" if busy is None else f" For {format_share(1 - busy)} of it the processor waits, e.g. for a disk."
        evidence.append(
            f"Loading the data of each step takes {format_duration(wait.fetch_ns)}, the rest of the step "
            f"{format_duration(wait.rest_ns)}.{waits} {_processes(needed)} would keep up, and there "
            f"{'is' if processor.cores == 1 else 'are'} {counted(processor.cores, 'core')}."
        )
    transfer, most = batch_transfer(wait.analysis), needed if busy is None else count
    if iterable:
        count = most = 1
    low_ns, high_ns = _worker_saving(wait, transfer, count, max(count, most))
    if transfer is not None:
        evidence.append(transfer.text)
    likely_ns = (low_ns + high_ns) / 2 if transfer is not None and transfer.measured else high_ns
    if likely_ns < MIN_SHARE * wait.step_ns:
        evidence.append(f"Worker processes would save less than {format_share(MIN_SHARE)} of the step, or nothing.")
        return _without_workers(wait, evidence)
    pinned = "pin_memory=True, " if wait.on_device and not loader_of(wait.analysis).pin_memory else ""
    loader = f"DataLoader(…, num_workers={count}, {pinned}persistent_workers=True)"
    model = (
        "Batches made while the device computes leave no wait, or half of it if workers compete for cores."
        if wait.on_device
        else "Batches made by workers leave no wait as far as the cores suffice, and no cold caches after it (up to a "
        "tenth more). Half of that is lost if workers compete for cores."
    )
    if transfer is not None:
        model += " Sending batches between processes is subtracted."
    if cost.compete(count):
        low_ns = 0.0
        evidence.append(_warning(processor, count))
        action = f"{MEASURE}: lightning-perf tune tries {loader}."
    elif low_ns <= 0:
        low_ns = 0.0
        if transfer is None:
            evidence.append(
                "The recording does not show the contents of a batch. Many small tensors take longer to send between "
                "processes than to make."
            )
        action = (
            f"{MEASURE}: lightning-perf data --step-ms {wait.rest_ns / 1e6:.3g} PKG:NAME. If loading takes longer than "
            f"the transfer, use {loader}."
        )
    else:
        action = f"Load in worker processes: {loader}. Raise num_workers while the wait shrinks."
        if iterable:
            action = f"Load in a worker process: {loader}. For more, each has to yield a part of its own."
    return _advice(action, (low_ns, high_ns), model, evidence)


def worker_saving(analysis: RankAnalysis, workers: int) -> tuple[float, float] | None:
    """Return the least and the most that so many worker processes save per step; None if nothing is known about it."""
    wait = _wait_in(analysis)
    if wait is None:
        return None
    transfer = None if wait.has_workers else batch_transfer(analysis)  # workers in use have sent their batches
    return _worker_saving(wait, transfer, workers, workers)


def _worker_saving(wait: _Wait, transfer: Transfer | None, workers: int, most_workers: int) -> tuple[float, float]:
    """Return the least and the most that worker processes save. The least is negative if they may cost time.

    A training that waits for its workers has time to receive, otherwise that takes a part of the wait. The workers cost
    the training an unknown time, so the least is half of the predicted saving. If the recording does not show how much
    of the fetch computes, the most is that of workers that all wait, e.g. for a disk.
    """
    sent_ns, received_ns = (0.0, 0.0), (0.0, 0.0)
    if transfer is not None:
        sent_ns = (wait.fetches * transfer.sent_ns[0], wait.fetches * transfer.sent_ns[1])
        # Computing on a device hides how long the training thread receives.
        least_ns = 0.0 if wait.on_device else wait.fetches * transfer.received_ns[0]
        received_ns = (least_ns, wait.fetches * transfer.received_ns[1])
    idle = replace(wait.cost, busy=0.0) if wait.busy is None else wait.cost
    low_ns = wait.step_ns - wait.cost.pace_ns(workers, sent_ns[1], received_ns[1])
    high_ns = wait.step_ns - idle.pace_ns(most_workers, sent_ns[0], received_ns[0])
    low_ns = min(low_ns / 2 if low_ns > 0 else low_ns, wait.wait_ns / 2 - received_ns[1])
    high_ns = min(high_ns, wait.most_ns - received_ns[0])
    low_ns = 0.0 if transfer is None or (wait.cost.compete(workers) and low_ns > 0) else low_ns
    return min(low_ns, high_ns), max(0.0, high_ns)


def _without_workers(wait: _Wait, evidence: Sequence[str]) -> Problem:
    """Advise cheaper batches where processes would lose more time for sending batches than they save."""
    batch = wait.analysis.metadata.batch
    facts = loader_of(wait.analysis)
    batches = " Or yield whole batches and set batch_size=None." if facts.kind == "iterable" else ""
    advice = _cheaper_batches(wait, f"{batches} Leave num_workers=0.", *evidence)
    if batch is None or batch.tensors < MANY_TENSORS:
        return advice
    few = "Make fewer, larger tensors: concatenate those of a batch in collate_fn. Then measure worker processes: "
    return replace(advice, action=f"{few}lightning-perf data PKG:NAME. Until then, leave num_workers=0.")


def _more_workers(wait: _Wait) -> Problem:
    facts, processor, cost = loader_of(wait.analysis), processor_of(wait.analysis), wait.cost
    workers, advised = facts.workers or 1, cost.advised
    # The loader needs a whole step for a batch. Twice the workers at best halve that.
    best_ns = min(wait.wait_ns, wait.step_ns / 2)
    model = "Twice the workers halve the time between batches at best, and save half of that if cores allow it."
    if processor.worker_cpu is not None and advised > workers:
        best_ns = min(wait.wait_ns, wait.step_ns - cost.pace_ns(advised))
        model = "More workers shorten the time between batches in proportion at best, by half of that at least."
    transfer = batch_transfer(wait.analysis)
    cause = explain_workers(wait.analysis.worker, wait.wait_ns / wait.step_ns)
    measured = transfer is not None and transfer.measured and not wait.on_device
    if transfer is not None and measured and transfer.received_ns[0] * wait.fetches >= wait.wait_ns / 2:
        cause = Cause("receiving", transfer.text)
    if cause is not None and cause.kind in OTHER_THAN_MORE:
        batch = wait.analysis.metadata.batch
        few = cause.kind == "receiving" and batch is not None and batch.complete and batch.tensors < MANY_TENSORS
        return _advice(
            WITHOUT_WORKERS if few else f"{cause.fix[0].upper()}{cause.fix[1:]}.",
            (0.0, best_ns),
            "The wait gets shorter by as much as the workers, or the transfer, get faster.",
            (cause.text, "More worker processes do not shorten that." if cause.kind == "receiving" else ""),
        )
    parts, evidence = [], list[str]()
    enough = facts.workers is not None and processor.cores is not None and advised <= workers
    if facts.workers is None or processor.cores is None:
        parts.append("raise num_workers towards the number of cores")
    else:
        evidence.append(_workers_text(processor, workers, enough) if cause is None else cause.text)
        if not enough:
            parts.append(f"raise num_workers from {workers} to {advised}")
    if not facts.persistent_workers:
        parts.append("set persistent_workers=True")
    if wait.on_device and wait.analysis.metadata.loader is not None and not facts.pin_memory:
        parts.append("set pin_memory=True")
    if cause is not None and cause.fix:
        parts.insert(0, cause.fix)
    elif enough or not workers_wait(processor):
        parts.append(f"make each batch cheaper: {CHEAPER if wait.on_device else CHEAPER_HERE}")
    text = f"{', '.join(parts[:-1])}, and {parts[-1]}" if len(parts) > 1 else parts[0]
    limited = enough or (cause is not None and cause.kind == "disk")  # its rate may be all that the disk has
    competing = facts.workers is not None and (limited or cost.compete(advised))
    if competing and not limited:
        evidence.append(_warning(processor, advised))
    return _advice(f"{text[0].upper()}{text[1:]}.", (0.0 if competing else best_ns / 2, best_ns), model, evidence)


def _busy_worker(processor: Processor) -> float:
    """Return the share of its time for which a worker process needs a core; 1 if it was not measured.

    Waits for a core are left out: without them it would be done earlier.
    """
    left = 1 - (processor.worker_wait or 0.0)
    return 1.0 if processor.worker_cpu is None or left <= 0 else min(1.0, processor.worker_cpu / left)


def workers_wait(processor: Processor) -> bool:
    """Return whether the workers mostly wait for something other than a core, e.g. for a disk."""
    return _busy_worker(processor) < WAITING


def _busy_in_fetch(processor: Processor, fetch_ns: float, step_ns: float) -> float | None:
    """Return the share of the fetch for which the training thread needs a core; None if it was not measured.

    The thread may also sleep elsewhere, so this is the least. Between threads of torch it waits mostly on its core, but
    on a busy machine it sleeps until the others have one.
    """
    if not processor.trains or processor.thread_cpu is None or processor.core_wait is None or not fetch_ns:
        return None
    if (processor.threads or 1) > 1 and processor.core_wait >= BUSY_WAIT:
        return None
    asleep_ns = max(0.0, 1 - processor.thread_cpu - processor.core_wait) * step_ns
    return max(0.0, 1 - asleep_ns / fetch_ns)


WAITING = 0.5
"""Share of the time for which workers compute, below which they mostly wait."""


def _workers_text(processor: Processor, workers: int, enough: bool) -> str:
    """Return a sentence about more workers, by the processor time of those in use; empty if it was not measured."""
    cores = counted(processor.cores or 1, "core")
    if processor.worker_cpu is None:
        return f"{_processes(workers)} already use all of the {cores}." if enough else ""
    each = f"Each of the {_processes(workers)} computes" if workers > 1 else "The worker process computes"
    share = format_share(processor.worker_cpu)
    if (processor.worker_wait or 0.0) >= BUSY_WAIT:
        return f"{each} for {share} of the time and waits for a core for {format_share(processor.worker_wait)}."
    if workers_wait(processor):
        return f"{each} for {share} of the time and waits for the rest, e.g. for a disk: it needs no core of its own."
    return f"{each} for {share} of the time, and there {'is' if processor.cores == 1 else 'are'} {cores}."


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


PINNED_SPEED_UP = (1.5, 8.0)
PCIE_BYTES_PER_S = 64e9
"""Least and most speed-up of a copy from pinned memory, which reaches the rate of the bus: at most that of PCIe 5.0
with 16 lanes. Copies from pageable memory reach about half of it on PCIe 3.0 and 4.0, and less on 5.0. Measured next
to an H200: 55 GB/s from pinned memory, and 6 to 8 GB/s from pageable memory, on busy cores."""


@rule("pageable-copies")
def pageable_copies(analysis: RankAnalysis) -> Problem | None:
    """Find copies to the device that the host has to wait for, because their source is pageable.

    Lightning copies on the stream that computes, so no compute hides the copies from pinned memory either.
    """
    loading = analysis.loading
    if loading is None or not loading.pageable_ns:
        return None
    steps = max(loading.steps, 1)
    exposed_ns = min(analysis.breakdown.category("memcpy_h2d").mean_ns or 0.0, loading.pageable_ns / steps)
    rate = loading.pageable_bytes / (loading.pageable_ns / 1e9) if loading.pageable_bytes else None
    least, most = PINNED_SPEED_UP
    most = max(1.0, min(most, PCIE_BYTES_PER_S / rate)) if rate else most
    wait_ns = loading.pageable_wait_ns / steps
    saving_ns = exposed_ns * (1 - 1 / min(least, most)), exposed_ns * (1 - 1 / most) + wait_ns
    copies = f"{counted(loading.pageable_copies / steps, 'copy', 'copies')} {each(analysis)}"
    moved = f", {format_bytes(loading.pageable_bytes / steps)} at {format_bandwidth(rate)}" if rate else ""
    waits = f" The device then waits {format_duration(wait_ns)} for the host." if wait_ns >= 1000 else ""
    return Problem(
        f"Copies from pageable memory: {format_duration(exposed_ns)} {each(analysis)} that no compute hides",
        f"{copies} from pageable host memory to the device{moved}.{waits}",
        "Pin the batches: DataLoader(…, pin_memory=True). Lightning then copies them faster and without waiting. In "
        "your own code, pin the tensor and call tensor.to(device, non_blocking=True). To hide the copies behind "
        "compute, copy each next batch on a stream of its own: torch.cuda.Stream().",
        SavingRange(
            saving_ns,
            f"Pinned copies are {min(least, most):.2g} to {most:.2g} times as fast. The host does not wait.",
        ),
    )
