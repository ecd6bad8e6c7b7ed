"""Rules about memory: requests to the driver, page faults, full and spare devices, and the contents of memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from msgspec import Struct

from lightning_perf.analysis.model.memory import DeviceMemory, ModuleActivations
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.conditions import is_cold
from lightning_perf.findings.finding import LARGER_BATCH, SIXTEEN_BITS, Problem, SavingRange, rule
from lightning_perf.findings.kernels import MAX_HALF_SHARE, device_in_use, has_bf16
from lightning_perf.findings.savings import (
    batch_can_grow,
    batch_doubt,
    each,
    idle_saving_ns,
    processor_of,
    share_of_step,
    whole,
)
from lightning_perf.machine.page_faults import KEEP_MEMORY
from lightning_perf.units import format_bytes, format_count, format_duration, format_share

UNCACHED_SHARE, MIN_UNCACHED = 0.1, 10
"""Gaps for requests to the driver, per kernel and at least, from which PyTorch hardly reuses memory. Without its cache
each tensor is a request (0.28 gaps per kernel in a public recording of ResNet-18)."""

UNCACHED_FIX = (
    "If PYTORCH_NO_CUDA_MEMORY_CACHING (on AMD: PYTORCH_NO_HIP_MEMORY_CACHING) is set, unset it: it makes each tensor "
    "a request to the driver."
)


@rule("allocator")
def allocator(analysis: RankAnalysis) -> Problem | None:
    """Find steps that wait for ``cudaMalloc``, ``cudaFree`` or their like."""
    row = analysis.breakdown.category("runtime_alloc")
    spent_ns = row.mean_ns or 0.0
    if not analysis.breakdown.has_device:
        return None
    calls = next((row.gaps for row in analysis.idle.classes if row.name == "runtime_alloc"), 0) if analysis.idle else 0
    kernels = analysis.launches.kernels if analysis.launches else 0
    uncached = calls >= max(MIN_UNCACHED, UNCACHED_SHARE * kernels)
    evidence = (
        f"Calls that allocate or free device memory take {format_duration(spent_ns)} {each(analysis)} while the device "
        "idles. In a settled run PyTorch's allocator makes no such calls."
    )
    fix = (
        "If you recorded the first steps, record later ones: PerfCallback(skip_first=20). Otherwise memory is short or "
        "fragmented: set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF in older releases), keep "
        "batch shapes constant, and remove torch.cuda.empty_cache()."
    )
    return Problem(
        f"Allocation: the host asks the driver for memory in {format_share(row.share)} of {whole(analysis)}",
        (
            evidence,
            f"The device waits for them in {format_count(calls)} gaps between {format_count(kernels)} kernels, as if "
            "nothing was cached."
            if uncached
            else "",
        ),
        f"{UNCACHED_FIX} {fix}" if uncached else fix,
        SavingRange(
            idle_saving_ns(analysis, spent_ns / 2, spent_ns),
            "These calls end once memory has settled. Half of them stay if shapes keep changing.",
        ),
    )


LEAST_FAULTS, MOST_FAULTS = 0.5, 1.25
"""Shares of the faults' cost on one thread that a step saves. Several threads share the faults, and freshly cleared
pages evict the step's own data from the caches."""


@rule("cpu-page-faults")
def cpu_page_faults(analysis: RankAnalysis) -> Problem | None:
    """Find steps in which the system has to clear the same memory again."""
    processor = processor_of(analysis)
    if not processor.trains or processor.allocator != "glibc" or not analysis.breakdown.marked:
        return None
    if not processor.page_faults or not processor.page_fault_ns:
        return None
    cost_ns = processor.page_faults * processor.page_fault_ns
    busy_ns = analysis.breakdown.category("host_compute").mean_ns or 0.0
    high_ns = min(MOST_FAULTS * cost_ns, busy_ns)
    shown_ns = min(cost_ns, busy_ns)  # measured one by one they may cost more than all operators of the step
    settings = " ".join(f"{name}={value}" for name, value in KEEP_MEMORY.items())
    return Problem(
        f"Page faults: {format_count(processor.page_faults)} per step, because freed memory is returned to the system",
        (
            (
                f"The system clears each page at its first use, in {format_duration(processor.page_fault_ns)} on this "
                f"machine: {format_duration(shown_ns)} per step, {share_of_step(shown_ns, analysis)}."
            ),
            "glibc returns large blocks when they are freed, and every step frees its activations.",
        ),
        f"Start the training with these environment variables: {settings}. glibc then keeps freed memory, and the "
        "process stays as large as its peak. Or preload jemalloc or tcmalloc.",
        SavingRange(
            (min(LEAST_FAULTS * cost_ns, high_ns), high_ns),
            "The faults go away, which saves half to five quarters of their cost on one thread.",
        ),
    )


def mixed_precision(analysis: RankAnalysis) -> str:
    """Return the option of the Trainer with which the device trains in 16 bits; empty if it does, or is unknown."""
    arithmetic, device = analysis.arithmetic, device_in_use(analysis)
    if not analysis.breakdown.has_device or device is None or (device.name is None and device.compute_major is None):
        return ""
    half_ns = sum(arithmetic.row(name).time_ns for name in ("fp16", "bf16", "fp8")) if arithmetic is not None else 0
    if arithmetic is not None and arithmetic.compute_ns and half_ns >= MAX_HALF_SHARE * arithmetic.compute_ns:
        return ""
    return f'Trainer(precision="{"bf16-mixed" if has_bf16(device) else "16-mixed"}")'


def several_gpus(analysis: RankAnalysis) -> bool:
    """Return whether there are several devices to shard a model over."""
    return (analysis.metadata.world_size or 1) > 1 or len(analysis.metadata.devices) > 1


FULL = 0.95
"""Share of the device's memory reserved at the peak from which a longer batch may not fit."""


@rule("memory-full")
def memory_full(analysis: RankAnalysis) -> Problem | None:
    """Find devices with so little free memory that the next larger batch may fail or has to request memory.

    No saving is estimated: the run is at stake, not its speed.
    """
    for device in analysis.memory.devices if analysis.memory is not None else ():
        if device.device is None or not device.total_bytes or device.peak_reserved_bytes is None:
            continue
        share = device.peak_reserved_bytes / device.total_bytes
        mixed = mixed_precision(analysis)
        if share >= FULL:
            return Problem(
                f"Memory is nearly full: the allocator holds {format_share(share)} of device {device.device}",
                f"At its peak it reserves {format_bytes(device.peak_reserved_bytes)} of "
                f"{format_bytes(device.total_bytes)}. Tensors use {format_bytes(device.peak_allocated_bytes)}.",
                f"Leave room: {f'{mixed}, ' if mixed else ''}activation checkpointing, half the batch_size "
                "with Trainer(accumulate_grad_batches=2), or PYTORCH_ALLOC_CONF=expandable_segments:True against "
                "fragmentation.",
                severity="moderate",
                changes=f"with mixed precision, {SIXTEEN_BITS}; batch norm sees half the batch if you accumulate",
            )
    return None


def fullest_device(analysis: RankAnalysis) -> tuple[int, int]:
    """Return the peak and the memory of the device in fullest use, in bytes; equal if the recording has neither."""
    used = [
        (device.peak_reserved_bytes or device.peak_allocated_bytes, device.total_bytes)
        for device in (analysis.memory.devices if analysis.memory is not None else ())
        if device.device is not None and device.total_bytes and device.absolute
    ]
    return max(used, key=lambda pair: pair[0] / pair[1], default=(1, 1))


SPARE = 0.4
"""Share of the device's memory in use at the peak below which twice the batch is sure to fit."""


@rule("memory-spare")
def memory_spare(analysis: RankAnalysis) -> Problem | None:
    """Find launch-bound steps on a device with room for twice the batch.

    A larger batch gives each launch more work. A device that computes all the time would gain little from it, so free
    memory alone is no finding. No saving is estimated, since a step of a larger batch is another step.
    """
    launches = analysis.launches
    if launches is None or launches.launch_bound is None or not launches.launch_bound.bound or is_cold(analysis):
        return None
    if not batch_can_grow(analysis):
        return None
    peak, total = fullest_device(analysis)
    if peak / total >= SPARE:
        return None
    return Problem(
        f"Spare memory: {format_share(1 - peak / total)} of device memory is never used, so the batch can grow",
        (
            f"At its peak the run uses {format_bytes(peak)} of {format_bytes(total)}, and it is launch-bound.",
            batch_doubt(analysis),
        ),
        "Double batch_size in DataLoader(…) as long as samples/s rise, and scale the learning rate with it.",
        severity="low",
        changes=LARGER_BATCH,
    )


SCARCE = 0.7
"""Share of the memory in use at the peak from which on less use is worth a change."""


class Scarce(Struct, frozen=True):
    """A device or host with little memory left, and the share of its memory that is in use at the peak."""

    memory: DeviceMemory
    name: str
    share: float
    tensor_bytes: int

    def describe(self) -> str:
        """Return a sentence about the peak."""
        return (
            f"At the peak {format_bytes(self.tensor_bytes)} are in tensors, and {format_share(self.share)} of the "
            f"memory of {self.name} is in use."
        )


def scarce_devices(analysis: RankAnalysis) -> Iterator[Scarce]:
    """Yield the devices of a rank with little memory left, as far as the recording shows their contents."""
    for memory in analysis.memory.devices if analysis.memory is not None else ():
        if not memory.parts:
            continue
        if memory.device is not None:
            used, total = memory.peak_reserved_bytes or memory.peak_allocated_bytes, memory.total_bytes
        else:
            used, total = memory.peak_allocated_bytes, memory.batch.available_bytes if memory.batch else None
        if total and used >= SCARCE * total:
            name = "the host" if memory.device is None else f"device {memory.device}"
            yield Scarce(memory, name, used / total, memory.peak_allocated_bytes)


MIN_UNUSED = 0.2
"""Share of the reserved memory without tensors at the peak from which the allocator is worth a change."""


@rule("fragmentation")
def fragmentation(analysis: RankAnalysis) -> Problem | None:
    """Find devices with scarce memory and an allocator that holds much of it without tensors.

    No saving is estimated: the free pieces limit the batch, not the speed.
    """
    for device in scarce_devices(analysis):
        unused = device.memory.part_bytes("fragmentation")
        reserved = device.tensor_bytes + unused
        if unused < MIN_UNUSED * reserved:
            continue
        return Problem(
            f"Fragmentation: {format_bytes(unused)} of {device.name} are reserved, but no tensor is in them",
            (
                device.describe(),
                f"The allocator holds {format_bytes(reserved)} then, {format_share(unused / reserved)} of it unused.",
            ),
            "Set PYTORCH_ALLOC_CONF=expandable_segments:True before the training starts "
            "(PYTORCH_CUDA_ALLOC_CONF in older releases). Keep batch shapes constant: DataLoader(…, drop_last=True).",
            severity="moderate",
            changes="drop_last=True leaves out the last samples of each epoch",
        )
    return None


MIN_ACTIVATIONS = 0.4
"""Share of the tensors at the peak from which the activations are worth a change."""

MIN_CHECKPOINTED = 0.1
"""Share of the activations that checkpoints have to save at least."""


class _Checkpoints(Struct, frozen=True):
    """Modules of one class that can be checkpointed."""

    class_name: str
    modules: tuple[ModuleActivations, ...]

    @property
    def saved_bytes(self) -> tuple[int, int]:
        """The least and the most that checkpoints save: all but one module at a time, and at least its inputs stay."""
        total = sum(module.bytes for module in self.modules)
        most = total - max(module.bytes for module in self.modules)
        return max(most - sum(module.largest_bytes for module in self.modules), 0), most


@rule("activations")
def activations(analysis: RankAnalysis) -> Problem | None:
    """Find devices with scarce memory and many activations, and the modules to checkpoint.

    Model: a checkpointed module keeps its inputs only and computes its activations again in the backward, one module at
    a time. The inputs of a module are taken as at most its largest activation. The cost is one more forward.
    """
    for device in scarce_devices(analysis):
        size = device.memory.part_bytes("activations")
        if size < MIN_ACTIVATIONS * device.tensor_bytes:
            continue
        share = format_share(size / device.tensor_bytes)
        best = _best_checkpoints(device.memory.activations)
        mixed = mixed_precision(analysis)
        or_mixed = f" Or use {mixed}." if mixed else ""
        evidence = [device.describe()]
        action = (
            "Checkpoint the blocks of your model: checkpoint(self.block, x, use_reentrant=False) from "
            f"torch.utils.checkpoint.{or_mixed} To see the modules, record with "
            "PerfCallback(profile_memory=True, with_stack=True)."
        )
        if best is not None:
            low, high = best.saved_bytes
            cost_ns = _forward_ns(analysis, best)
            cost = "" if cost_ns is None else f" and costs about {format_duration(cost_ns)} {each(analysis)}"
            evidence.append(
                f"{len(best.modules)} modules of class {best.class_name} hold "
                f"{format_bytes(sum(module.bytes for module in best.modules))}. Checkpointing them saves "
                f"{format_bytes(low)} to {format_bytes(high)}{cost}."
            )
            fsdp = f", or FSDPStrategy(activation_checkpointing_policy={{{best.class_name}}})"
            action = (
                f"Checkpoint each {best.class_name}: checkpoint(module, x, use_reentrant=False) from "
                f"torch.utils.checkpoint{fsdp if several_gpus(analysis) else ''}.{or_mixed}"
            )
        rounding = f"; with mixed precision, {SIXTEEN_BITS}" if or_mixed else ""
        return Problem(
            f"Activations take {format_bytes(size)}, {share} of the bytes in tensors",
            tuple(evidence),
            action,
            severity="moderate",
            changes=f"checkpointed batch norms count each batch twice{rounding}",
        )
    return None


def _best_checkpoints(modules: tuple[ModuleActivations, ...]) -> _Checkpoints | None:
    """Return the repeated blocks of the model with the most to save; None if nothing repeats."""
    groups: dict[tuple[str, int], list[ModuleActivations]] = defaultdict(list)
    for module in modules:
        if module.inner_modules:
            groups[module.name.rpartition("_")[0] or module.name, module.depth].append(module)
    found = [_Checkpoints(name, tuple(group)) for (name, _), group in groups.items() if len(group) > 1]
    best = max(found, key=lambda group: group.saved_bytes[1], default=None)
    total = max((module.bytes for module in modules), default=0)
    return best if best is not None and best.saved_bytes[1] >= MIN_CHECKPOINTED * total else None


def _forward_ns(analysis: RankAnalysis, checkpoints: _Checkpoints) -> float | None:
    """Return the time of one more forward of some modules per step."""
    if analysis.modules is None:
        return None
    names = {module.name for module in checkpoints.modules}
    rows = [row for row in analysis.modules.rows if row.name in names]
    spent = [row.host_total_ns if row.device_total_ns is None else row.device_total_ns for row in rows]
    return sum(spent) / max(analysis.modules.steps, 1) if rows else None


SHARD = 'Or shard the state over the GPUs: Trainer(strategy="fsdp"). '
MIN_STATE = 0.3
"""Share of the tensors at the peak from which the state is worth a change."""

EIGHT_BIT = 0.75
"""Part of an FP32 state that an 8-bit optimizer saves."""


@rule("optimizer-state")
def optimizer_state(analysis: RankAnalysis) -> Problem | None:
    """Find devices with scarce memory and a large state of the optimizer.

    No saving of time is estimated. An 8-bit state takes a quarter of an FP32 state, and sharding divides the state by
    the number of ranks.
    """
    for device in scarce_devices(analysis):
        state, parameters = (device.memory.part_bytes(part) for part in ("optimizer state", "parameters"))
        if state < MIN_STATE * device.tensor_bytes:
            continue
        ratio = f" That is {state / parameters:.1f} times the parameters." if parameters else ""
        share = format_share(state / device.tensor_bytes)
        world = analysis.metadata.world_size or 1
        sharded = (
            f" Sharded over {world} ranks, each rank keeps {format_bytes(state / world)} of it." if world > 1 else ""
        )
        return Problem(
            f"Optimizer state takes {format_bytes(state)}, {share} of the bytes in tensors",
            (
                f"{device.describe()}{ratio}",
                f"An 8-bit optimizer saves about {format_bytes(EIGHT_BIT * state)} of an FP32 state.{sharded}",
            ),
            "Use an 8-bit optimizer such as torchao.optim.AdamW8bit in configure_optimizers. "
            f"{SHARD if several_gpus(analysis) else ''}fused=True avoids the temporary memory of the update.",
            severity="moderate",
            changes="the state of an 8-bit optimizer is rounded, so compare your metric over several runs",
        )
    return None
