"""Rules about the time of a whole fit, from its account, and about its memory over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

from lightning_perf.analysis.steps.fit_time import FitPart, FitTime, MemoryGrowth
from lightning_perf.findings.finding import SKIPPED_WORK, Problem, SavingRange, fit_rule, growth_rule, is_worth_it
from lightning_perf.run_files.fit.account import FULL_GENERATION
from lightning_perf.run_files.fit.memory_growth import TensorGroup
from lightning_perf.units import counted, format_bytes, format_count, format_duration, format_share


def of_fit(time_ns: float, fit_ns: float | None) -> str:
    """Return a time with its share of the fit, if that is known, as text."""
    return format_duration(time_ns) + (f" ({format_share(time_ns / fit_ns)} of the fit)" if fit_ns else "")


NAMED_SHARE = 0.2
"""Share of the growth from which one kind of tensor, or the items of one container, are named as its cause."""

TENSORS_PER_STEP = 0.5
"""Tensors with a graph that each step adds from which on they are named as the cause."""


@growth_rule("leak")
def leak(growth: MemoryGrowth) -> Problem | None:
    """Find memory that grows steadily with the tensors or objects that the program keeps.

    No saving is estimated: the fit fails when the memory is full.
    """
    if not growth.grows or not _keeps_more(growth):
        return None
    where = "the GPU's tensors" if growth.source == "allocator" else "the process"
    whole = growth.bytes_per_step * (growth.last_step - growth.first_step)
    cause = _leak_cause(growth)
    return Problem(
        f"Leak: memory grows by {format_bytes(growth.bytes_per_step)} per step",
        (
            (
                f"The memory of {where} grows by {format_bytes(whole)} from step {growth.first_step:,} to step "
                f"{growth.last_step:,}, in every quarter of these steps."
            ),
            _leak_sentence(growth, cause),
        ),
        "Keep numbers instead of tensors with a graph: self.losses.append(loss.item()) or loss.detach(). Clear "
        "such lists in on_train_epoch_end."
        if cause is not None and cause.has_graph
        else "Find the list, dictionary or cache that keeps them, and clear it in on_train_epoch_end.",
        severity="high",
    )


def _leak_cause(growth: MemoryGrowth) -> TensorGroup | None:
    """Return the kind of tensor that explains the growth; None if none does."""
    expected = growth.bytes_per_step * growth.counted_steps
    largest = max(growth.tensors, key=lambda row: row.bytes, default=None)
    if largest is not None and largest.bytes >= NAMED_SHARE * expected:
        return largest
    graphs = [row for row in growth.tensors if row.has_graph and row.count >= TENSORS_PER_STEP * growth.counted_steps]
    return max(graphs, key=lambda row: row.count, default=None)


def _keeps_items(growth: MemoryGrowth) -> bool:
    """Return whether the items of one container explain the growth."""
    return growth.item_bytes >= NAMED_SHARE * growth.bytes_per_step * growth.counted_steps > 0


def _keeps_more(growth: MemoryGrowth) -> bool:
    """Return whether tensors or objects become more. The allocator of a GPU counts tensors only."""
    return growth.source == "allocator" or _leak_cause(growth) is not None or _keeps_items(growth)


MANY_LENGTHS = 4
"""Different lengths of batches from which caches for each shape are the likely reason of growth."""


@growth_rule("memory-growth")
def memory_growth(growth: MemoryGrowth) -> Problem | None:
    """Find memory that grows steadily although the program keeps no more tensors or objects.

    Libraries keep compiled code and buffers for each new shape, and glibc keeps freed memory.
    """
    if not growth.grows or _keeps_more(growth):
        return None
    whole = growth.bytes_per_step * (growth.last_step - growth.first_step)
    steps = counted(growth.counted_steps, "step")
    known = (
        f"In {steps}, no kind of tensor and no list, dictionary or set was found that explains it."
        if growth.counted_steps
        else "Tensors and objects were not counted twice, so the program may also keep them."
    )
    outside = " outside of tensors" if growth.counted_steps else ""
    lengths = growth.batch_lengths or 0
    shapes: tuple[str, ...]
    if lengths >= MANY_LENGTHS:
        shapes = (
            (
                f"Steps have {format_count(lengths)} different numbers of tokens. Libraries such as oneDNN keep code "
                "and buffers for each shape."
            ),
        )
        action = "Pad to few lengths: to the next multiple of 64 in collate_fn. Caches then fill once."
    else:
        shapes = ()
        action = (
            "Train longer: caches of libraries level off. If it continues, look at code outside of Python, such as "
            "decoders, and start the training with jemalloc."
        )
    return Problem(
        f"Memory grows by {format_bytes(growth.bytes_per_step)} per step{outside}",
        (
            (
                f"The memory of the process grows by {format_bytes(whole)} from step {growth.first_step:,} to step "
                f"{growth.last_step:,}. {known}"
            ),
            *shapes,
        ),
        action,
        severity="low",
    )


LEAST_COPIED_BYTES = 16 * 2**20
"""Memory that a worker process copies at least. Python itself makes a worker copy a few MiB."""

MUCH_COPIED_BYTES = 2**30


@growth_rule("worker-memory")
def worker_memory(growth: MemoryGrowth) -> Problem | None:
    """Find workers that copy the objects of a data set, because reading an object writes its reference count.

    No saving is estimated: the fit fails when the memory is full.
    """
    worker = growth.worker
    if worker is None or not worker.container or worker.copied_bytes < LEAST_COPIED_BYTES:
        return None
    all_bytes = worker.workers * worker.copied_bytes
    name, _, what = worker.container.partition(": ")
    return Problem(
        f"Workers copy the data set: {format_bytes(all_bytes)} in {counted(worker.workers, 'process', 'processes')}",
        (
            (
                f"The own memory of a worker grows from {format_bytes(worker.first_bytes)} in step "
                f"{worker.first_step:,} to {format_bytes(worker.last_bytes)} in step {worker.last_step:,}. It has no "
                "more memory in all, so these are copies of pages that it shared."
            ),
            (
                f"The data set holds {what} ({name}). Reading a Python object writes its reference count, and the "
                "system then copies its page for each worker, again in each epoch if workers do not persist."
            ),
        ),
        f"Keep the samples of {name} in arrays: torch.tensor(labels) for numbers, np.array(paths, dtype=np.bytes_) for "
        "texts.",
        severity="moderate" if all_bytes >= MUCH_COPIED_BYTES else "low",
    )


def _leak_sentence(growth: MemoryGrowth, cause: TensorGroup | None) -> str:
    if not growth.counted_steps:
        return "The tensors were not counted twice, because the fit ended soon after the growth."
    steps = counted(growth.counted_steps, "step")
    if cause is None:
        if _keeps_items(growth):
            items, size = format_count(growth.items), format_bytes(growth.item_bytes)
            return f"In {steps}, one list, dictionary or set got {items} more items of about {size}."
        return f"In {steps}, no kind of tensor grew as much."
    size, per_step = format_bytes(cause.bytes), format_bytes(cause.bytes / growth.counted_steps)
    graph = " They also keep their graphs of autograd alive." if cause.has_graph else ""
    return (
        f"In {steps}, {format_count(cause.count)} more {cause.kind} on {cause.device} hold {size}, {per_step} per step."
        f"{graph}"
    )


MIN_VALIDATION_SHARE = 0.10
"""Share of the fit from which validation is worth a look."""

WAITING_SHARE = 0.5
"""From this share of fetches on, the validation loader is the reason."""


@fit_rule("long-validation")
def long_validation(fit: FitTime) -> Problem | None:
    """Find fits with a large part of validation."""
    validation = fit.group("validation")
    runs = fit.validations
    if not runs or validation.share < MIN_VALIDATION_SHARE:
        return None
    saved_ns = validation.time_ns * ((runs // 2) / runs if runs > 1 else 0.5)
    batches = validation.part("compute").count / runs
    fetch_ns = validation.part("fetch").time_ns
    parts = ", ".join(
        f"{format_share(part.time_ns / validation.time_ns)} {part.name}" for part in validation.parts if part.time_ns
    )
    evidence = [
        (
            f"{counted(runs, 'validation run')} of {format_count(round(batches))} batches take "
            f"{format_duration(validation.time_ns / runs)} each: {parts}."
        ),
        f"The training steps take {of_fit(fit.group('training steps').time_ns, fit.wall_ns)}.",
    ]
    action = _validate_less(fit, runs)
    if fetch_ns >= WAITING_SHARE * validation.time_ns:
        workers = max((start.workers for start in fit.starts if start.stage == "validation"), default=0)
        made = f", which {counted(workers, 'worker process', 'worker processes')} {'make' if workers > 1 else 'makes'}"
        evidence.append(f"Validation mostly waits for its batches{made if workers else ''}.")
        faster = (
            f"Make its batches cheaper, or raise num_workers of its loader from {workers} if cores are free."
            if workers
            else "Load the validation set in worker processes: DataLoader(…, num_workers=4)."
        )
        action = f"{faster} {action}"
    return Problem(
        f"Long validation: it takes {of_fit(validation.time_ns, fit.wall_ns)}",
        evidence,
        action,
        SavingRange((0.8 * saved_ns, saved_ns), "Half of the validation goes away, or nearly so."),
        changes="validation metrics, and checkpoints and early stopping that depend on them, follow fewer batches",
    )


def _validate_less(fit: FitTime, runs: int) -> str:
    facts = fit.facts
    if runs < 2:
        return "Validate on a part of the set: Trainer(limit_val_batches=0.5)."
    interval, every = facts.val_check_interval, facts.check_val_every_n_epoch
    if interval is not None and interval > 1:
        setting = f"val_check_interval={2 * round(interval)}"
    elif interval is not None and interval <= 0.5:
        setting = f"val_check_interval={2 * interval:g}"
    else:
        setting = f"check_val_every_n_epoch={2 * (every or 1)}"
    return f"Validate less often: Trainer({setting}), or on a part of the set: Trainer(limit_val_batches=0.5)."


CALLBACK_FIXES = {
    "TQDMProgressBar": "Refresh the bar less often: TQDMProgressBar(refresh_rate=50).",
    "RichProgressBar": "Refresh the bar less often: RichProgressBar(refresh_rate=50).",
    "DeviceStatsMonitor": "Remove DeviceStatsMonitor, or raise Trainer(log_every_n_steps=…).",
    "ModelCheckpoint": "Save less often: a larger every_n_train_steps or every_n_epochs.",
    "LearningRateMonitor": 'Log the rate once per epoch: LearningRateMonitor(logging_interval="epoch").',
}
"""Fixes for callbacks of Lightning."""


ONCE_PER_FIT = frozenset({"setup", "teardown", "on_fit_start", "on_fit_end", "on_train_start", "on_train_end"})
"""Hooks that a fit calls once for each callback. To run them less often is no fix."""


@fit_rule("slow-callback")
def slow_callback(fit: FitTime) -> Problem | None:
    """Find the callback that takes the largest part of the fit, if that is 3 % or more.

    Model: half to nine tenths of its time in repeated hooks goes away. A hook that runs once per fit is named only if
    no callback is slow in repeated ones.
    """
    once, by_class = _hooks_by_class(fit)
    slow = _slow_classes(fit, by_class)
    if not slow:
        return _slow_once(fit, once)
    name = slow[0]
    top = by_class[name][0]
    hook = top.name.partition(".")[2]
    evidence = [
        (
            f"{top.name} takes {format_duration(top.time_ns)} in {counted(top.count, 'call')}, "
            f"{format_duration(top.time_ns / max(top.count, 1))} each."
        ),
        *(f"{other} takes {of_fit(_time_ns(by_class[other]), fit.wall_ns)}." for other in slow[1:3]),
    ]
    rarely = "every 10th batch" if "batch" in hook or "step" in hook else "every 10th epoch"
    time_ns = _time_ns(by_class[name])
    return Problem(
        f"Slow callback: {name} takes {of_fit(time_ns, fit.wall_ns)}",
        evidence,
        CALLBACK_FIXES.get(name, f"Run the work of {top.name} less often, e.g. {rarely}, or in a background thread."),
        SavingRange((0.5 * time_ns, 0.9 * time_ns), "Half to nine tenths of the callback's time goes away."),
        changes="" if name in CALLBACK_FIXES else SKIPPED_WORK,
    )


def _hooks_by_class(fit: FitTime) -> tuple[list[FitPart], dict[str, list[FitPart]]]:
    """Return the hooks of callbacks that ran once, and the others by class, the longest first."""
    once, by_class = list[FitPart](), defaultdict[str, list[FitPart]](list)
    for part in fit.group("callbacks").parts:
        name, _, hook = part.name.partition(".")
        (by_class[name] if part.count > 1 and hook not in ONCE_PER_FIT else once).append(part)
    return once, by_class


def _slow_classes(fit: FitTime, by_class: dict[str, list[FitPart]]) -> list[str]:
    """Return the classes of slow callbacks, the slowest first."""
    slow = (name for name, parts in by_class.items() if is_worth_it(_time_ns(parts), fit.wall_ns, "fit"))
    return sorted(slow, key=lambda name: -_time_ns(by_class[name]))


def _time_ns(parts: Iterable[FitPart]) -> int:
    return sum(part.time_ns for part in parts)


def slow_hooks(fit: FitTime) -> list[FitPart]:
    """Return the repeated hooks of the callback that `slow-callback` names."""
    _, by_class = _hooks_by_class(fit)
    return [part for name in _slow_classes(fit, by_class)[:1] for part in by_class[name]]


def _slow_once(fit: FitTime, parts: list[FitPart]) -> Problem | None:
    """Name the longest hook that ran once; None if it is short."""
    top = max(parts, key=lambda part: part.time_ns, default=None)
    if top is None:
        return None
    ran = f"It ran {'once' if top.count == 1 else counted(top.count, 'time')}"
    if top.name.partition(".")[2] in ONCE_PER_FIT:
        often, evidence = "once per fit", f"{ran}, so a longer fit makes its share smaller."
    else:
        often, evidence = "in one call", f"{ran} in this fit, and may run more often in a longer one."
    return Problem(
        f"Slow callback: {top.name} takes {of_fit(top.time_ns, fit.wall_ns)}, {often}",
        evidence,
        f"Look for work in {top.name} that you can cache or leave out.",
        SavingRange((0.0, float(top.time_ns)), "At most all of it goes away."),
    )


@fit_rule("slow-checkpoints")
def slow_checkpoints(fit: FitTime) -> Problem | None:
    """Find checkpoints that hold the training up while they are gathered and written."""
    group = fit.group("checkpoints")
    gather, write = group.part("gather"), group.part("write")
    if not gather.count:
        return None
    half_ns = group.time_ns / 2
    return Problem(
        f"Slow checkpoints: training waits {of_fit(group.time_ns, fit.wall_ns)} for them",
        f"{counted(gather.count, 'checkpoint')} take {format_duration(group.time_ns / gather.count)} each: "
        f"{format_duration(gather.time_ns / gather.count)} to gather the state and "
        f"{format_duration(write.time_ns / gather.count)} to write it.",
        "Write them in the background: Trainer(plugins=[AsyncCheckpointIO()]). Or save less often: "
        "ModelCheckpoint(every_n_epochs=2), or a larger every_n_train_steps.",
        SavingRange(
            (min(half_ns, write.time_ns), max(half_ns, write.time_ns)),
            "Saving half as often saves half of the time, and writing in the background saves the writes.",
        ),
        changes="only if you save less often: the best checkpoint is chosen from fewer",
    )


MIN_COMPILE_SHARE = 0.5
"""From this share of the extra time on, compilation is the reason."""


@fit_rule("slow-first-step")
def slow_first_step(fit: FitTime) -> Problem | None:
    """Find a first step that takes much longer than the later ones, and the reason."""
    first, later = fit.group("first step"), fit.group("training steps")
    others = fit.steps - 1
    extra_ns = _first_step_extra_ns(fit)
    if others < 1:
        return None
    usual_ns = later.time_ns / others
    extra_of_parts = {part.name: part.time_ns - later.part(part.name).time_ns / others for part in first.parts}
    top = max(extra_of_parts, key=lambda name: extra_of_parts[name])
    reason, action = _first_step_reason(fit, top)
    return Problem(
        f"Slow first step: it takes {of_fit(first.time_ns, fit.wall_ns)}",
        (
            (
                f"A later step takes {format_duration(usual_ns)} on average. The largest part of the difference is "
                f"{format_duration(extra_of_parts[top])} in {'the rest of the loop' if top == 'loop' else top}."
            ),
            reason,
        ),
        action,
        SavingRange((0.0, extra_ns), "At most the time beyond a later step goes away."),
    )


def is_compilation(fit: FitTime) -> bool:
    """Return whether compilation is the reason for a slow first step."""
    return fit.compile_ns is not None and fit.compile_ns >= MIN_COMPILE_SHARE * _first_step_extra_ns(fit)


def _first_step_extra_ns(fit: FitTime) -> float:
    """Return the time of the first step beyond the mean of the others."""
    others = max(fit.steps - 1, 1)
    return fit.group("first step").time_ns - fit.group("training steps").time_ns / others


def _first_step_reason(fit: FitTime, top: str) -> tuple[str, str]:
    """Return the reason as a sentence, which may be empty, and the fix."""
    facts = fit.facts
    if fit.compile_ns is not None and is_compilation(fit):
        return (
            f"torch.compile takes {format_duration(fit.compile_ns)} of it.",
            (
                "Keep the compiled code between runs: set TORCHINDUCTOR_CACHE_DIR to a folder that lasts. Or compile "
                "only the block that repeats: model.block.compile()."
            ),
        )
    if top == "fetch":
        return (
            "The first batch is loaded in it.",
            "Make the first sample cheaper: move one-time work of the data set into setup.",
        )
    if facts.device == "cuda" and facts.cudnn_benchmark:
        return (
            "cuDNN measures its algorithms in it, because torch.backends.cudnn.benchmark is on.",
            "In a short fit, turn the search off: Trainer(benchmark=False). It runs again for every new input shape.",
        )
    if facts.device == "cuda":
        return (
            "CUDA loads each kernel at its first launch, and cuBLAS and cuDNN initialize.",
            "Train longer per process, e.g. several short fits in one process, so that this cost is paid once.",
        )
    return "", f"Look for one-time work in {top}, e.g. caches that it fills, and do it once for several fits."


PERIODIC_CALLS = ("log_metrics", "save")
"""Methods that run again and again. The others run once per fit or per checkpoint."""

LOG_LESS = 10
"""Logging is advised at steps that are this many times as far apart."""


@fit_rule("slow-logger")
def slow_logger(fit: FitTime) -> Problem | None:
    """Find loggers that hold the training up."""
    group = fit.group("logging")
    if not group.parts:
        return None
    top = group.parts[0]
    logger, _, method = top.name.rpartition(".")
    periodic_ns = sum(part.time_ns for part in group.parts if part.name.rpartition(".")[2] in PERIODIC_CALLS)
    once_ns = group.time_ns - periodic_ns
    every = fit.facts.log_every_n_steps
    evidence = [
        f"{part.name} takes {format_duration(part.time_ns)} in {counted(part.count, 'call')}."
        for part in group.parts[:3]
        if part.time_ns >= 0.05 * group.time_ns
    ]
    if method in PERIODIC_CALLS:
        further = f"log_every_n_steps={LOG_LESS * every}" if every else "log_every_n_steps=500"
        action = f"Log less often: Trainer({further}), or let the logger write in a background thread."
    else:
        action = f"Let {logger} do this work in the background, or upload after the training, e.g. in its offline mode."
    return Problem(
        f"Slow logger: training waits {of_fit(group.time_ns, fit.wall_ns)} for {logger}",
        evidence,
        action,
        SavingRange(
            (0.5 * periodic_ns, 0.9 * periodic_ns + once_ns),
            "Logging a tenth as often saves half to nine tenths of the calls at steps.",
        ),
    )


FREED_COST = 3
"""Objects that stay which take a full collection as long as one that it frees: measured with lists and dictionaries."""

COLLECT_RARELY = (
    "Or collect rarely: gc.disable() in on_train_start, and gc.collect() in every 1,000th on_train_batch_end. Until "
    "then, reference cycles keep their memory."
)


@fit_rule("gc-pauses")
def gc_pauses(fit: FitTime) -> Problem | None:
    """Find full garbage collections, which look at all objects of the program, that pause the training for long."""
    full = next((each for each in fit.collections if each.generation == FULL_GENERATION), None)
    if full is None or full.objects is None or not full.count:
        return None
    steps_ns = fit.group("first step").time_ns + fit.group("training steps").time_ns
    took = (
        f"{full.count:,} full collections in steps take {format_duration(full.time_ns / full.count)} each, and the "
        f"longest {format_duration(full.longest_ns)}. Together that is"
        if full.count > 1
        else f"One full collection in a step takes {format_duration(full.time_ns)},"
    )
    freed = full.freed / full.count
    objects = f"Each frees {counted(round(freed), 'object')}, and {counted(full.objects, 'object')} stay."
    if full.objects < FREED_COST * freed:
        reason = f"{objects} The steps leave reference cycles, so gc.freeze() does not help."
        action = (
            "Find the cycles: call gc.set_debug(gc.DEBUG_SAVEALL), and look at gc.garbage after a step and "
            f"gc.collect(). Break them, e.g. with weakref.ref. {COLLECT_RARELY}"
        )
        saving = SavingRange((0.0, full.time_ns), "At most all of it goes away, if steps leave no cycles.")
    else:
        reason = f"{objects} Most of the time, the collector looks at those that stay."
        action = (
            "Leave the objects of the model and the data out: call gc.collect() and then gc.freeze() in "
            f"on_train_start. {COLLECT_RARELY}"
        )
        saving = SavingRange((0.5 * full.time_ns, full.time_ns), "Half to all of the full collections' time goes away.")
    return Problem(
        f"Garbage collection: training pauses {of_fit(full.time_ns, fit.wall_ns)} for full collections",
        (
            f"{took} {format_share(full.time_ns / max(steps_ns, full.time_ns))} of the time of the steps.",
            reason,
        ),
        action,
        saving,
    )


RESTART_SHARE = 0.8
"""Least share of a restart that persistent workers save. They still receive the order of the next epoch."""


@fit_rule("worker-restarts")
def worker_restarts(fit: FitTime) -> Problem | None:
    """Find data loaders that start their worker processes again in every epoch."""
    evidence, low_ns, high_ns, stages, remade_ns = [], 0.0, 0.0, [], 0.0
    for stage in ("training", "validation"):
        found = _restarts(fit, stage)
        if found is None:
            continue
        restarts, workers, start_ns, first_ns = found
        evidence.append(
            f"The {stage} loader has {counted(workers, 'worker')} and starts them {counted(restarts, 'time')} after "
            f"the first: {format_duration(start_ns / restarts)} per start, and {format_duration(first_ns / restarts)} "
            "until the first batch."
        )
        low_ns += RESTART_SHARE * start_ns
        high_ns += start_ns + first_ns
        stages.append(stage)
        made = _made_loaders(fit, stage)
        if made.count > 1:
            again_ns = made.time_ns * (made.count - 1) / made.count
            evidence.append(
                f"{made.name} makes a new loader {counted(made.count - 1, 'time')} after the first, in "
                f"{format_duration(again_ns)}: persistent_workers=True alone keeps none of its workers."
            )
            remade_ns += again_ns
    if not stages:
        return None
    action = "Keep the workers alive between epochs: DataLoader(…, persistent_workers=True)"
    model = "Persistent workers save 80 % of each restart, and at most also the wait for its first batch."
    if remade_ns:
        action += ", and keep the loader: Trainer(reload_dataloaders_every_n_epochs=0)"
        model += " A loader that is kept also saves the time to make it again."
    return Problem(
        f"Restarted workers: {' and '.join(stages)} {'start' if len(stages) > 1 else 'starts'} worker processes in "
        f"every epoch, for {of_fit(high_ns + remade_ns, fit.wall_ns)}",
        evidence,
        f"{action}.",
        SavingRange((low_ns + RESTART_SHARE * remade_ns, high_ns + remade_ns), model),
        changes="only if the program changes the data set between epochs: the workers keep their first copy",
    )


def _made_loaders(fit: FitTime, stage: Literal["training", "validation"]) -> FitPart:
    """Return the hook that makes the loaders of a loop. It runs again if the Trainer reloads them."""
    return fit.group("data preparation").part({"training": "train_dataloader", "validation": "val_dataloader"}[stage])


def _restarts(fit: FitTime, stage: Literal["training", "validation"]) -> tuple[int, int, float, float] | None:
    """Return the restarts of a loop's workers, their number, and the time of all starts and of all first batches."""
    made = _made_loaders(fit, stage).count
    listed = [start for start in fit.starts if start.stage == stage and (made > 1 or not start.persistent)][1:]
    if not listed:
        return None
    # The list is limited in length, and the count is not.
    restarts = max(len(listed), fit.group("worker start-up").part(stage).count - 1)
    factor = restarts / len(listed)
    start_ns = factor * sum(start.start_ns for start in listed)
    first_ns = factor * sum(start.first_batch_ns for start in listed)
    return restarts, listed[0].workers, start_ns, first_ns
