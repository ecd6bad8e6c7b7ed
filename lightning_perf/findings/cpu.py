"""Rules for trainings on a processor: arithmetic, layout, overhead, pauses and idle cores."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import get_args

from msgspec.structs import replace

from lightning_perf.analysis.host.host_compute import HostCompute, HostKind, HostWork, Layout
from lightning_perf.analysis.host.waits import PhasePause, function_text
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.conditions import BUSY_WAIT, free_cores, is_busy
from lightning_perf.findings.finding import (
    LARGER_BATCH,
    NO_SAVING,
    SIXTEEN_BITS,
    SKIPPED_WORK,
    Problem,
    SavingRange,
    rule,
)
from lightning_perf.findings.savings import (
    PLACES,
    RECORD_STACKS,
    batch_can_grow,
    batch_doubt,
    choose_saving,
    compile_obstacle,
    each,
    loader_of,
    probed_change,
    processor_of,
    share_of_step,
    step_ns,
    whole,
)
from lightning_perf.units import counted, format_count, format_duration, format_share


def rows(
    compute: HostCompute, *kinds: HostKind, arithmetic: str | None = None, layout: Layout | None = None
) -> tuple[HostWork, ...]:
    """Return the operators of some kinds."""
    return tuple(
        row
        for row in compute.work
        if row.kind in kinds and arithmetic in (None, row.arithmetic) and layout in (None, row.layout)
    )


def time_ns(found: Iterable[HostWork], compute: HostCompute) -> float:
    """Return the mean time of operators in nanoseconds per step."""
    return sum(row.time_ns for row in found) / compute.steps


def host_saving_ns(analysis: RankAnalysis, least_ns: float, most_ns: float) -> tuple[float, float]:
    """Return the least and most step time that faster operators save; less if those of several threads overlap."""
    compute = analysis.host_compute
    busy_ns = analysis.breakdown.category("host_compute").mean_ns or 0.0
    if compute is None or not compute.operator_ns:
        return 0.0, 0.0
    factor = min(1.0, busy_ns / (compute.operator_ns / compute.steps))
    return least_ns * factor, most_ns * factor


BF16_SPEED_UP = {"amx_bf16": (1.5, 8.0), "avx512_bf16": (1.5, 2.75), "bf16": (1.1, 4.0)}
"""Least and most speed-up of FP32 products by the processor's instructions, the fastest first.

AVX-512: measured (``benchmarks/results/planted.md``), twice the products per instruction and half the bytes. AMX: 1,024
operations per cycle against 64 (https://docs.pytorch.org/tutorials/recipes/amx.html); training reaches half of that at
most, since memory sets the pace. Arm: BFMMLA does four times the products of FMLA. The last two were not measured.
"""

CAST_CALL_NS = (10_000.0, 80_000.0)
"""Extra cost of a product per call, at least and at most: casts of its operands, and its set-up."""

CAST_NS = (0.3, 3.0)
"""Cost to cast an element of a weight and its gradient on one thread: 12 bytes in the cache or in fresh memory."""

BF16_GAINS: dict[HostKind, tuple[float, float]] = {
    "normalization": (1.0, 2.5),
    "normalization backward": (1.0, 2.5),
    "elementwise": (1.0, 3.0),
    "batched product": (0.9, 1.5),
    "attention": (0.25, 1.5),
    "long attention": (0.85, 2.0),
    "grouped convolution": (0.33, 1.0),
    "recurrent layer": (0.8, 1.5),
}
"""Least and most speed-up of the other operators that autocast runs in bfloat16. Some of them get slower: attention
over short sequences took up to four times as long, and the backward pass of grouped convolutions three times. LSTMs of
32 to 1,024 units had 0.81 to 1.45 times the speed."""

PRODUCTS: tuple[HostKind, ...] = ("convolution", "convolution backward", "matrix product")


@rule("cpu-bf16")
def cpu_bf16(analysis: RankAnalysis) -> Problem | None:
    """Find FP32 trainings on a processor that mixed precision is sure to speed up.

    Products with sparse tensors raise an error in it.
    """
    compute, processor = analysis.host_compute, processor_of(analysis)
    instruction = next((name for name in BF16_SPEED_UP if name in (processor.bf16 or ())), None)
    if compute is None or instruction is None or rows(compute, "sparse product"):
        return None
    products = rows(compute, *PRODUCTS, arithmetic="fp32")
    calls = sum(row.calls for row in products) / compute.steps
    weights = sum(row.weights for row in products if row.kind != "convolution backward") / compute.steps
    products_ns = time_ns(products, compute)
    if not products_ns:
        return None
    savings = []
    for end, factor in enumerate(BF16_SPEED_UP[instruction]):
        others = sum(
            time_ns(rows(compute, kind, arithmetic="fp32"), compute) * (1 - 1 / factors[end])
            for kind, factors in BF16_GAINS.items()
        )
        casts_ns = calls * CAST_CALL_NS[1 - end] + weights * CAST_NS[1 - end] / (processor.threads or 1)
        savings.append(products_ns * (1 - 1 / factor) + others - casts_ns)
    general_ns = host_saving_ns(analysis, *savings)
    slow, fast = BF16_SPEED_UP[instruction]
    saving = choose_saving(
        analysis,
        "bf16",
        general_ns if general_ns[0] > 0 else None,
        f"Products speed up {slow:g} to {fast:g} times, normalization up to 2.5 times. Each call and each weight costs "
        "casts.",
    )
    convolutions_ns = time_ns((row for row in products if row.kind != "matrix product"), compute)
    parts = [
        f"{format_duration(ns)} {each(analysis)} in {kind}"
        for ns, kind in ((convolutions_ns, "convolutions"), (products_ns - convolutions_ns, "matrix products"))
        if ns > 0
    ]
    return Problem(
        "FP32 on a processor with bfloat16: FP32 products take "
        f"{share_of_step(products_ns, analysis)} of {whole(analysis)}",
        f"{' and '.join(parts)}. {processor.name or 'The processor'} has {instruction}.",
        'Train in mixed precision: Trainer(precision="bf16-mixed").',
        saving,
        changes=SIXTEEN_BITS,
    )


CHANNELS_LAST_SPEED_UP: dict[HostKind, tuple[float, float]] = {
    "pooling": (3.0, 14.0),
    "normalization": (1.5, 4.5),
    "normalization backward": (1.2, 2.6),
    "grouped convolution": (1.0, 2.5),
}
"""Least and most speed-up of operators in channels last."""

ACTIVATION_NS = (-0.3, 3.5)
WEIGHT_NS = (1.0, 2.2)
"""Saving per element of a convolution's input and output, and cost per element of its weight. Both are for a forward
and a backward pass on one thread. oneDNN computes on blocks of channels. In channels last it no longer copies tensors
into blocks and back (https://pytorch.org/blog/accelerating-pytorch-vision-models-with-channels-last-on-cpu/), but it
copies weights and their gradients more often. At the lower end the copies are free, because they stay in the cache, and
fresh memory is touched instead. Elements of half the size save and cost half."""

CONVOLUTIONS: tuple[HostKind, ...] = ("convolution", "convolution backward")


@rule("cpu-channels-last")
def cpu_channels_last(analysis: RankAnalysis) -> Problem | None:
    """Find operators on images that are faster in channels last.

    Model: convolutions save time per element of their activations and pay per element of their weights. Other operators
    get faster by a factor. If many weights meet few pixels, the cost may exceed the saving, and nothing is found.
    """
    compute = analysis.host_compute
    if compute is None:
        return None
    convolutions = rows(compute, *CONVOLUTIONS, layout="channels first")
    if not convolutions:
        return None
    others = {kind: time_ns(rows(compute, kind, layout="channels first"), compute) for kind in CHANNELS_LAST_SPEED_UP}
    threads = processor_of(analysis).threads or 1
    savings = []
    for end in (0, 1):
        elements_ns = sum(
            (row.activations * ACTIVATION_NS[end] - row.weights * WEIGHT_NS[1 - end])
            * (0.5 if row.arithmetic in ("bf16", "fp16") else 1.0)
            for row in convolutions
            if row.kind == "convolution backward"
        )
        others_ns = sum(ns * (1 - 1 / CHANNELS_LAST_SPEED_UP[kind][end]) for kind, ns in others.items())
        savings.append(elements_ns / compute.steps / threads + others_ns)
    convolutions_ns = time_ns(convolutions, compute)
    low_ns, high_ns = host_saving_ns(analysis, *savings)
    high_ns = min(high_ns, convolutions_ns + sum(others.values()))
    saving = choose_saving(
        analysis,
        "channels-last",
        (low_ns, high_ns) if low_ns > 0 else None,
        "Convolutions save copies of their inputs and outputs, but copy weights more often. Pooling speeds up 3 to 14 "
        "times, batch norm 1.2 to 4.5 times.",
    )
    total_ns = convolutions_ns + sum(others.values())
    named = [
        f"{format_duration(ns)} {each(analysis)} {where}"
        for ns, where in (
            (convolutions_ns + others["grouped convolution"], "in convolutions"),
            (others["pooling"], "in pooling"),
            (others["normalization"] + others["normalization backward"], "in batch norm"),
        )
        if ns > 0
    ]
    return Problem(
        f"Channels first on a processor: {share_of_step(total_ns, analysis)} of "
        f"{whole(analysis)} works on images in that order",
        f"{', '.join(named)}. The strides of their inputs show the order.",
        "Keep images in channels last: model.to(memory_format=torch.channels_last) before trainer.fit(model). "
        "Activations follow the weights.",
        saving,
    )


MIN_OVERHEAD = 0.4
"""Share of overhead from which more work per call helps."""

SAVED_BY_BATCH = (0.3, 0.75)
"""Shares of the overhead that each sample saves: at least with twice the batch, at most with four times the batch.

Overhead that does not grow with the batch is halved or quartered for each sample. A part of it may grow."""


@rule("cpu-overhead")
def cpu_overhead(analysis: RankAnalysis) -> Problem | None:
    """Find steps on a processor that are mostly Python and short operators.

    Model: the fixed cost of a step is divided among two to four times as many samples. The saving is for as many
    samples as a step has now. If a probe compiled the calls, and this saves more, it is the fix.
    """
    compute = analysis.host_compute
    if compute is None or analysis.metadata.processor is None or not analysis.breakdown.marked or not step_ns(analysis):
        return None
    python_ns = compute.gaps_ns / compute.steps
    short_ns = compute.short_ns / compute.steps
    overhead_ns = python_ns + short_ns
    share = overhead_ns / step_ns(analysis)
    large_ns = overhead_ns if share >= MIN_OVERHEAD else None
    fixes = [_larger_batch(analysis, large_ns), _compiled(analysis), _merged(analysis, large_ns)]
    fix = max(filter(None, fixes), key=_order, default=None)
    if fix is None:
        return None
    if share >= MIN_OVERHEAD:
        part = f"{share_of_step(overhead_ns, analysis)} of {whole(analysis)}"
        fix = replace(fix, title=f"Overhead: {part} is Python and short operators")
    evidence = (
        f"{format_count(compute.short_calls / compute.steps)} of {counted(compute.calls / compute.steps, 'operator')} "
        f"{each(analysis)} are shorter than 10 µs, {format_duration(short_ns)} together. Python and the framework "
        f"around them take {format_duration(python_ns)}."
    )
    return replace(fix, evidence=(evidence, *fix.evidence))


def _order(fix: Problem) -> tuple[bool, float]:
    """Return the key by which the fix to give is the largest: a probed one, with the larger saving."""
    return (fix.saving.basis == "probed", sum(fix.saving.ns)) if fix.saving is not None else (False, 0.0)


def _larger_batch(analysis: RankAnalysis, overhead_ns: float | None) -> Problem | None:
    """Return the fix of a larger batch; None if the batch is the whole data set."""
    if not batch_can_grow(analysis):
        return None
    saving = choose_saving(
        analysis,
        "batch",
        None if overhead_ns is None else (SAVED_BY_BATCH[0] * overhead_ns, SAVED_BY_BATCH[1] * overhead_ns),
        "Twice the batch saves each sample up to half of that, four times the batch up to three quarters.",
    )
    if saving is NO_SAVING:
        return None
    saving = replace(saving, model=f"{saving.model} The saving is for as many samples as a step has now.")
    probed, obstacle = probed_change(analysis, "batch"), compile_obstacle(analysis)
    title, evidence = "", [batch_doubt(analysis), obstacle]
    action = "Give each step more work: raise batch_size two to four times and scale the learning rate with it."
    if probed is not None and overhead_ns is None:
        title = f"Small batches: with {probed.setting}, each sample takes less time"
        action = f"Use DataLoader({probed.setting}), and scale the learning rate with it."
        evidence = evidence[:1]
    elif obstacle:
        action += " lightning-perf tune measures it."
    else:
        action += " Or merge operators: model = torch.compile(model). lightning-perf tune measures both."
    return Problem(title, evidence, action, saving, changes=LARGER_BATCH)


def _compiled(analysis: RankAnalysis) -> Problem | None:
    """Return the fix of compiling the model, if a probe compiled its calls."""
    saving = choose_saving(analysis, "compile", None, "")
    if saving is NO_SAVING or analysis.probe is None or compile_obstacle(analysis):
        return None
    took = format_duration(1e9 * (analysis.probe.compile_s or 0.0))
    return Problem(
        "Separate operators: compiled, the step takes less time",
        (),
        "Merge operators: model = torch.compile(model).",
        replace(saving, model=f"{saving.model} Compiling took {took} here."),
    )


def _merged(analysis: RankAnalysis, overhead_ns: float | None) -> Problem | None:
    """Return the fix of compiling the model where the batch is the whole data set. No probe measured its saving."""
    if overhead_ns is None or batch_can_grow(analysis) or compile_obstacle(analysis):
        return None
    if probed_change(analysis, "compile") is not None:
        return None
    return Problem(
        "",
        ("The batch is the whole data set, so it cannot grow.",),
        "Merge operators: model = torch.compile(model). lightning-perf tune measures it.",
        SavingRange((0.0, overhead_ns), "Merged operators need fewer calls, at best none.", "general"),
    )


MIN_PAUSE_SHARE = 0.05
"""Share of the step from which the pauses of a phase are reported."""

ELSEWHERE = {**PLACES, "optimizer": "in the optimizer step", "other": "between the phases"}
"""Where the training thread is."""

HOOKS = {
    "transfer": ("transfer_batch_to_device", "on_before_batch_transfer", "on_after_batch_transfer"),
    "forward": ("training_step",),
    "backward": ("backward", "on_before_backward", "on_after_backward"),
    "optimizer": ("optimizer_step", "on_before_optimizer_step", "configure_gradient_clipping"),
}
"""Hooks that run in a phase. Other hooks run between the phases."""

HOOK_SHARE = 0.5
"""Share of a pause from which a hook is its cause."""

OTHER_RULES = ("fetch", "checkpoint")
"""Phases that `input-bound` and `slow-checkpoints` judge, over the whole fit."""

WITH_RANKS = ("transfer", "forward", "validation")
"""Phases that are judged in runs of several ranks. In the others a rank may wait for another one."""


@rule("cpu-pauses")
def cpu_pauses(analysis: RankAnalysis) -> Problem | None:
    """Find long stretches of the step in which the training thread runs no operators.

    The median recorded step decides. On a busy machine the step with the shortest pauses decides, since the training
    thread may lose its core in some steps.
    """
    found = _longest_pause(analysis)
    if found is None:
        return None
    pause, time_ns = found
    cause, part, evidence = _pause_cause(analysis, pause, time_ns)
    place = ELSEWHERE["optimizer" if pause.phase == "other" and "optimizer_step" in cause else pause.phase]
    named = f", in {cause}" if cause else ""
    return Problem(
        f"Pauses: {format_duration(time_ns)} per step outside operators {place}{named}",
        (
            (
                f"The training thread runs no operator for {share_of_step(time_ns, analysis)} of {whole(analysis)}, in "
                "stretches of at least 1 ms. Python code, sleeping and I/O look like this."
            ),
            *evidence,
        ),
        _pause_fix(analysis, pause, cause),
        SavingRange((time_ns / 2, time_ns), "Half to all of the pauses go away."),
        changes=SKIPPED_WORK if cause and part != "logging" else "",
        part=part,
    )


def _longest_pause(analysis: RankAnalysis) -> tuple[PhasePause, float] | None:
    """Return the phase with the longest pauses and their time per step, if it is worth reporting."""
    if analysis.host_compute is None or analysis.pauses is None or not analysis.breakdown.marked:
        return None
    if analysis.phases.source != "own":
        return None
    busy = is_busy(analysis.metadata.processor)
    alone = (analysis.metadata.world_size or 1) <= 1
    times = [
        (pause, float(pause.least_ns if busy else pause.median_ns))
        for pause in analysis.pauses.phases
        if pause.phase in ELSEWHERE and pause.phase not in OTHER_RULES and (alone or pause.phase in WITH_RANKS)
    ]
    if not times:
        return None
    pause, time_ns = max(times, key=lambda pair: pair[1])
    return (pause, time_ns) if time_ns >= MIN_PAUSE_SHARE * step_ns(analysis) > 0 else None


def _pause_cause(analysis: RankAnalysis, pause: PhasePause, time_ns: float) -> tuple[str, str, list[str]]:
    """Return the code that pauses and its part of the fit, as far as the recording names them, and the evidence."""
    if pause.function is not None:
        return function_text(pause.function), "", []
    loop = analysis.metadata.loop
    if loop is None or loop.hooks is None or not loop.steps:
        return "", "", []
    inside = HOOKS.get(pause.phase)
    # `optimizer_step` also runs around the optimizer and its closure, outside of any phase.
    elsewhere = {hook for hooks in HOOKS.values() for hook in hooks} - {"optimizer_step"}
    hooks = [
        hook
        for hook in loop.hooks
        if (hook.name.split(".")[-1] in inside if inside else hook.name.split(".")[-1] not in elsewhere)
    ]
    slowest = max(hooks, key=lambda hook: hook.time_ns, default=None)
    if slowest is not None and slowest.time_ns / loop.steps >= HOOK_SHARE * time_ns:
        text = f"{slowest.name} takes {format_duration(slowest.time_ns / loop.steps)} per step."
        return slowest.name, slowest.name, [text]
    if pause.phase == "other" and loop.loggers and loop.log_every_n_steps == 1:
        spent_ns = sum(hook.time_ns for hook in hooks) / loop.steps
        loggers = " and ".join(loop.loggers)
        text = f"Hooks of callbacks take {format_duration(spent_ns)} of it. Lightning calls {loggers} in the rest."
        return f"the logger {loggers}" if len(loop.loggers) == 1 else f"the loggers {loggers}", "logging", [text]
    return "", "", []


def _pause_fix(analysis: RankAnalysis, pause: PhasePause, cause: str) -> str:
    hooks = HOOKS.get(pause.phase)
    around = [f"after {pause.after}"] if pause.after is not None else []
    around += [f"before {pause.before}"] if pause.before is not None else []
    place = f": most of the time is {' and '.join(around)}" if around else ""
    if cause.startswith("the logger"):
        return "Log less often: Trainer(log_every_n_steps=50), or let the logger write in a background thread."
    if cause:
        advice = f"Move slow work out of {cause}: into the dataset, into a thread, or to every n-th batch."
    elif hooks is None:
        advice = f"Look at on_train_batch_start and on_train_batch_end of your callbacks and at your loggers{place}."
    else:
        advice = f"Look at {' and '.join(hooks[:2])} of your LightningModule and callbacks{place}."
    return advice if pause.function or analysis.metadata.with_stack else f"{advice} {RECORD_STACKS}"


MOST_LOST = 0.9
"""Share of the operators' time that threads without a core lose at most. On two busy cores, steps took 4 to 11 times as
long on two threads as on one: each operator waits for the thread that has no core."""


@rule("thread-contention")
def thread_contention(analysis: RankAnalysis) -> Problem | None:
    """Find trainings on more threads than cores are free, because other programs or the loader's workers use them.

    Processor time decides, not the load.
    """
    compute, processor = analysis.host_compute, processor_of(analysis)
    workers = loader_of(analysis).workers or 0
    free, threads = free_cores(processor, workers), processor.threads or 1
    if compute is None or free is None or processor.core_wait is None or not processor.trains:
        return None
    enough = max(1, math.floor(free + 0.5))
    if enough >= threads or processor.core_wait < BUSY_WAIT:
        return None
    busy_ns = analysis.breakdown.category("host_compute").mean_ns or 0.0
    used = [
        f"{who} {counted(cores, 'core')}"
        for who, cores in (
            ("other programs keep", processor.other_cpu or 0.0),
            ("the loader's workers keep", workers * (processor.worker_cpu or 0.0)),
        )
        if cores >= NOTABLE_CORES
    ]
    if not used:
        return None
    return Problem(
        f"Threads compete for cores: operators run on {counted(threads, 'thread')}, and {format_count(free)} of "
        f"{counted(processor.cores or 0, 'core')} {'is' if free == 1 else 'are'} free",
        (
            (
                f"By processor time, {' and '.join(used)} busy. The training thread waits for a core for "
                f"{format_share(processor.core_wait)} of the time, and each operator waits for its last thread."
            ),
            f"All threads of the training together have {format_count(processor.process_cpu or 0.0)} cores.",
        ),
        f"Call torch.set_num_threads({enough}) before training, or set OMP_NUM_THREADS={enough}.",
        SavingRange(
            ((MOST_LOST / 2 if free < 0.5 else 0.0) * busy_ns, MOST_LOST * busy_ns),
            "Operators lose up to nine tenths of their time to threads without a core.",
            "general",
        ),
    )


NOTABLE_CORES = 0.25
"""Cores from which the use by others is named."""

FEW_THREADS = 0.5
"""Share of the cores up to which threads count as few. By default torch uses all cores."""

IDLE_CORES = 0.3
"""Share of the cores that must have been idle before the recording: cores in use by others save nothing."""

LARGE_OPERATOR_NS = 100_000
"""Mean time of operators from which it helps to divide them among threads."""

LEAST_CORE_GAIN = 0.2
MOST_CORE_RATIO = 4.0
"""Least gain per further core, for up to four times as many cores as threads."""


@rule("cpu-threads")
def cpu_threads(analysis: RankAnalysis) -> Problem | None:
    """Find large operators that run on few of the cores that the process may use.

    Runs of several ranks are left out, since the recording of one does not show its share of the cores. Model: large
    operators speed up in proportion to the cores at most. With worker processes of the loader, which need cores, too,
    they may not speed up at all.
    """
    compute, processor = analysis.host_compute, processor_of(analysis)
    if compute is None or not processor.threads or not processor.cores or processor.load is None:
        return None
    if processor.threads > FEW_THREADS * processor.cores or (analysis.metadata.world_size or 1) > 1:
        return None
    kinds = [kind for kind in get_args(HostKind) if kind != "other"]
    large = [row for row in rows(compute, *kinds) if row.time_ns >= LARGE_OPERATOR_NS * row.calls]
    large_ns = time_ns(large, compute)
    workers = loader_of(analysis).workers or 0
    free = free_cores(processor, workers)
    if is_busy(processor) or (free is not None and free - processor.threads < IDLE_CORES * processor.cores):
        return None
    ratio = processor.cores / processor.threads
    has_workers = analysis.loading is not None and analysis.loading.loader == "workers"
    least = 1.0 if has_workers else 1 + LEAST_CORE_GAIN * (min(ratio, MOST_CORE_RATIO) - 1)
    general_ns = host_saving_ns(analysis, large_ns * (1 - 1 / least), large_ns * (1 - 1 / ratio))
    idle = processor.cores - max(processor.load, processor.threads)
    saving = choose_saving(
        analysis,
        "threads",
        general_ns if idle >= IDLE_CORES * processor.cores else None,
        f"Large operators speed up {least:.2g} to {ratio:.2g} times.",
    )
    threads = counted(processor.threads, "thread")
    return Problem(
        f"Idle cores: operators run on {threads}, and there are {processor.cores:,} cores",
        f"Large operators take {format_duration(large_ns)} {each(analysis)} "
        f"({share_of_step(large_ns, analysis)}), and torch divides each among its threads. The load of the "
        f"machine was {processor.load:.1f} before the recording.",
        f"Call torch.set_num_threads({processor.cores}) before training, less a core for each busy DataLoader worker. "
        f"Or set OMP_NUM_THREADS={processor.cores}: torchrun and many clusters set it to 1.",
        saving,
    )
