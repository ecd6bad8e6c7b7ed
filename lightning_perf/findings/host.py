"""Rules about devices that wait for the host: launches, short kernels, syncs, Python, and steps that stand out."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_perf.analysis.host.launches import LAUNCH_BOUND_SHARE
from lightning_perf.analysis.host.waits import SyncPoint, function_text
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.conditions import is_cold
from lightning_perf.findings.finding import (
    MIN_SHARE,
    NO_SAVING,
    ONLY_LARGER_BATCH,
    SKIPPED_WORK,
    Basis,
    Problem,
    SavingRange,
    rule,
    saving_whole_ns,
)
from lightning_perf.findings.kernels import device_in_use, has_bf16, is_benchmarking
from lightning_perf.findings.savings import (
    GRAPH_FIX,
    PLACES,
    RECORD_STACKS,
    batch_can_grow,
    choose_graph_saving,
    compile_obstacle,
    each,
    idle_saving_ns,
    in_idle_time,
    step_ns,
    usual_idle,
    whole,
    worth_it,
)
from lightning_perf.units import counted, format_count, format_duration, format_share

FUSION_SAVES = 0.3
GRAPHS_SAVE = 0.9
"""Shares of the wait that are saved: fusing keeps most launches, and a replayed graph keeps one of hundreds."""


@rule("launch-bound", part=in_idle_time)
def launch_bound(analysis: RankAnalysis) -> Problem | None:
    """Find steps in which the device has an empty queue because the host is still issuing operators.

    A probe that replayed the calls from a CUDA graph narrows the range, and it may find a gain where waits are short.
    """
    launches = analysis.launches
    if launches is None or launches.launch_bound is None or not launches.calls or is_cold(analysis):
        return None
    bound = launches.launch_bound
    steps = max(launches.steps, 1)
    # Requests for memory are among these calls, and the rule `allocator` covers them.
    operator_ns = max(0.0, bound.operator_ns / steps - (analysis.breakdown.category("runtime_alloc").mean_ns or 0.0))
    waiting_ns = (bound.launch_ns + bound.python_ns) / steps + operator_ns
    share = waiting_ns / step_ns(analysis) if step_ns(analysis) else 0.0
    short = launches.short_kernels / launches.kernels if launches.kernels else 0.0
    is_bound = share >= LAUNCH_BOUND_SHARE
    if not is_bound and (share < MIN_SHARE or small_kernels(analysis) is not None):
        return None
    saving = _launch_saving(analysis, waiting_ns if is_bound else None)
    between = "the Python between them" if analysis.operators is not None else "the host's unrecorded work"
    return Problem(
        f"Launch-bound: the device waits {format_share(share)} of {whole(analysis)} for the host to launch work",
        (
            (
                f"{counted(launches.calls / steps, 'launch', 'launches')} {each(analysis)}, "
                f"{counted(launches.kernels / steps, 'kernel')}, {format_share(short)} of them shorter than 10 µs."
            ),
            (
                f"With an empty queue, the device waits {format_duration(bound.launch_ns / steps)} for launch calls, "
                f"{format_duration(operator_ns)} for operators and "
                f"{format_duration(bound.python_ns / steps)} for {between}."
            ),
            usual_idle(analysis),
            compile_obstacle(analysis),
        ),
        _launch_fix(analysis, saving.basis),
        saving,
        changes=ONLY_LARGER_BATCH if batch_can_grow(analysis) else "",
    )


def _launch_saving(analysis: RankAnalysis, waiting_ns: float | None) -> SavingRange:
    """Return the saving, if it is worth reporting. Leave out a wait that is too short for a general range."""
    if analysis.workload.second_derivative:
        # The calls of a probe are differentiated once, so its replay says nothing about this training.
        model = "Fewer operators and launches save time, by an unknown amount."
        return NO_SAVING if waiting_ns is None else SavingRange((0.0, GRAPHS_SAVE * waiting_ns), model, "general")
    return choose_graph_saving(
        analysis,
        None if waiting_ns is None else idle_saving_ns(analysis, FUSION_SAVES * waiting_ns, GRAPHS_SAVE * waiting_ns),
        "Fusing operators saves about a third of that wait, CUDA graphs nearly all of it.",
    )


def _launch_fix(analysis: RankAnalysis, basis: Basis) -> str:
    """Return the fix without excluded parts: CUDA graphs if a probe measured them or the model is compiled."""
    batch = " If memory and the data set allow, raise batch_size." if batch_can_grow(analysis) else ""
    if analysis.workload.second_derivative:
        return f"Give the device more work per launch: use fewer, larger operators.{batch}"
    if basis == "probed":
        fix = f"Replay the model from CUDA graphs: {GRAPH_FIX}.{batch}"
    elif compile_obstacle(analysis):
        fix = f'Replay the compiled model from CUDA graphs: torch.compile(model, mode="reduce-overhead").{batch}'
    else:
        fix = (
            "Give the device more work per launch: model = torch.compile(model), or torch.compile(model, "
            f'mode="reduce-overhead") for CUDA graphs.{batch}'
        )
    launches = analysis.launches
    if launches is not None and launches.graphs is not None:
        fix += " Some work is in graphs already: capture the rest, too."
    return fix


MIN_SHORT_SHARE = 0.5
"""Share of short kernels from which fusing them helps."""

REPLAY_FIX = f"Replay them from a CUDA graph: {GRAPH_FIX}"
FUSE_FIX = "Fuse them: model = torch.compile(model)."
KERNEL_FIXES: dict[Basis, str] = {
    "recording": FUSE_FIX,
    "general": f'{FUSE_FIX} With mode="reduce-overhead" they are also replayed as a CUDA graph.',
    "probed": f"{REPLAY_FIX}. It also fuses kernels, which may save more.",
}
"""The fix by the basis of the estimate. If a graph saves nothing, fusing is left."""

MAX_GAP_NS = 5_000
"""Longest time from one queued kernel to the next; usually it is about 1 µs. Longer gaps have other reasons: a wait for
another stream, or another process on the device."""


@rule("small-kernels")
def small_kernels(analysis: RankAnalysis) -> Problem | None:
    """Find steps of many short kernels with gaps that add up, although the host launches the kernels in time.

    Fusing saves up to half of the short kernels' own time, since most of it is reading and writing memory. If most
    kernels are replayed from a graph already, only fusing is left, and nothing if the model is compiled.
    """
    launches, idle = analysis.launches, analysis.idle
    if launches is None or idle is None or not launches.kernels or analysis.workload.second_derivative:
        return None
    if launches.launch_bound is None or launches.launch_bound.bound:
        return None  # a truncated file, or the host is the reason: see `launch-bound`
    short = launches.short_kernels / launches.kernels
    steps = max(launches.steps, 1)
    gap_ns = min(idle.short_gap_ns or 0, MAX_GAP_NS * launches.kernels) / steps
    kernel_ns = launches.short_kernel_ns / steps
    replayed = launches.graphs is not None and launches.graphs.kernels >= launches.kernels / 2
    if replayed and compile_obstacle(analysis):
        return None  # fused and in a graph: nothing is left to do
    if short < MIN_SHORT_SHARE or not worth_it(gap_ns + kernel_ns / 2, analysis):
        return None
    general_ns = (0.0 if replayed else gap_ns / 2, gap_ns + kernel_ns / 2)  # in a graph, gaps are minimal
    saving = _kernel_saving(analysis, general_ns, kernel_ns / 2, replayed=replayed)
    return Problem(
        f"Many small kernels: {format_share(short)} of {counted(launches.kernels / steps, 'kernel')} {each(analysis)} "
        "are shorter than 10 µs",
        f"They run {format_duration(kernel_ns)} {each(analysis)}, and the device idles "
        f"{format_duration(gap_ns)} between kernels that were queued in time.",
        f"{REPLAY_FIX}." if compile_obstacle(analysis) else KERNEL_FIXES[saving.basis],
        saving,
    )


def _kernel_saving(
    analysis: RankAnalysis, general_ns: tuple[float, float], fusing_ns: float, *, replayed: bool
) -> SavingRange:
    """Return the saving: that of a replay by a probe, or the general range."""
    least = "nothing" if replayed else "half of the gaps"
    model = f"At least {least}, at most all gaps and half of the short kernels' own time."
    if replayed:
        return SavingRange(general_ns, model, "recording")
    saving = choose_graph_saving(analysis, general_ns, model)
    if saving is NO_SAVING and worth_it(fusing_ns, analysis) and not compile_obstacle(analysis):
        model = (
            "A replay from a CUDA graph saved next to nothing, on this device. Fusing saves at most half of the short "
            "kernels' own time."
        )
        return SavingRange((0.0, fusing_ns), model, "recording")
    return saving


WAITING_CODE = {
    "aten::item": ".item()",
    "aten::_local_scalar_dense": ".item()",
    "aten::is_nonzero": "bool() of a tensor",
    "aten::nonzero": "nonzero() or indexing with a mask",
    "aten::to": ".cpu() or .to() of a tensor",
    "aten::_to_copy": ".cpu() or .to() of a tensor",
    "aten::copy_": "copy_() between host and device",
    "aten::equal": "torch.equal()",
    "aten::unique": "unique()",
    None: "torch.cuda.synchronize() or another runtime call",
}
"""The code that makes an operator wait."""

BETWEEN = "in a callback, a logger or for the progress bar"
BETWEEN_WITHOUT_BAR = "in a callback or a logger"
"""Places in the Trainer if a recording of `PerfCallback` names no phase."""

NAMED_VALUES = 3
"""Values for the progress bar that are named."""

SCALER = "GradScaler, which reads whether gradients overflowed"
"""The source of a wait that is no code of the user."""

MIN_SYNC_SHARE = 0.05
"""Places with less than this share of the saving are left out: with an empty queue nothing waits."""

KEEP_ON_DEVICE = (
    'Keep values on the device inside the step: self.log("loss", loss) instead of loss.item(), torch.where instead of '
    "indexing with a mask, copies to the device with non_blocking=True."
)
WITHOUT_SCALER_READS = (
    "Give the optimizer fused=True, which lets the device decide whether to step. Lightning does not combine it with "
    "gradient_clip_val."
)
WITHOUT_SCALER = ' Or train in Trainer(precision="bf16-mixed"), which needs no loss scale. This rounds more.'
IN_CALLBACKS = "In your own callbacks read values every log_every_n_steps."
PROGRESS_BAR = (
    "Log without prog_bar=True: Lightning reads such a value after each batch, even without a bar and at any refresh "
    f"rate. With on_step=False and on_epoch=True, the bar shows it once per epoch. {IN_CALLBACKS}"
)


@rule("sync-points", part=in_idle_time)
def sync_points(analysis: RankAnalysis) -> Problem | None:
    """Find waits for the device that cost step time.

    A wait alone costs nothing, since the device works during it. It costs time if the device then runs dry, because the
    host could not queue ahead. Model: without the wait the host is ahead by as much, so at most the wait is saved of
    the time without work. Time in which the host waits for input is left out, since worker processes set the pace.
    """
    syncs = analysis.sync_points
    if syncs is None:
        return None
    points = [point for point in syncs.points if not is_benchmarking(point)]
    total_ns = sum(point.regained_ns for point in points)
    points = [point for point in points if point.regained_ns > MIN_SYNC_SHARE * total_ns]
    between = _between(analysis)
    steps = max(syncs.steps, 1)
    regained_ns = sum(point.regained_ns for point in points) / steps
    sure_ns = sum(min(point.regained_ns, point.drained_ns) for point in points) / steps
    calls = format_count(sum(point.calls for point in points) / steps)
    times = "once" if calls == "1" else f"{calls} times"
    return Problem(
        f"Sync points: {times} {each(analysis)} the host waits for the device, and the device then runs dry",
        [*[_sync_evidence(point, steps, each(analysis), between) for point in points][:3], usual_idle(analysis)],
        _sync_fix(points, analysis),
        SavingRange(
            idle_saving_ns(analysis, sure_ns / 2, regained_ns),
            "Without the wait the host is ahead by as much, and the device runs dry for that much less.",
        ),
    )


def _sync_fix(points: Sequence[SyncPoint], analysis: RankAnalysis) -> str:
    """Return the fix for most of the time."""
    own = analysis.phases.source == "own"
    users = [point for point in points if not point.by_scaler]
    scaler_ns, between_ns, other_ns = (
        sum(point.regained_ns for point in of)
        for of in (
            (point for point in points if point.by_scaler),
            (point for point in users if own and point.phase == "other"),
            (point for point in users if not own or point.phase != "other"),
        )
    )
    if scaler_ns > max(between_ns, other_ns):
        return WITHOUT_SCALER_READS + (WITHOUT_SCALER if has_bf16(device_in_use(analysis)) else "")
    function = next((point.function for point in users if point.function), None)
    between = IN_CALLBACKS if _bar_values(analysis) == () else PROGRESS_BAR
    return _with_function(analysis, function, between if between_ns > other_ns else KEEP_ON_DEVICE)


def _bar_values(analysis: RankAnalysis) -> tuple[str, ...] | None:
    """Return the values that are logged in each step for the progress bar; None if they are unknown."""
    return analysis.metadata.loop.bar_values if analysis.metadata.loop is not None else None


def _between(analysis: RankAnalysis) -> str:
    """Return the place in the Trainer of a wait in no phase; empty for a recording of another recorder."""
    if analysis.phases.source != "own":
        return ""
    values = _bar_values(analysis)
    if not values:
        return BETWEEN if values is None else BETWEEN_WITHOUT_BAR
    return f"in Lightning, which reads {', '.join(values[:NAMED_VALUES])} for the progress bar"


def _with_function(analysis: RankAnalysis, function: str | None, action: str) -> str:
    """Return the fix, with the function that takes the time or the way to find it."""
    if function is not None:
        return f"Look at {function_text(function)}. {action}"
    return action if analysis.metadata.with_stack else f"{action} {RECORD_STACKS}"


def _sync_evidence(point: SyncPoint, steps: int, each: str, between: str) -> str:
    source = SCALER if point.by_scaler else WAITING_CODE.get(point.operator, point.operator or "")
    where = f"{point.operator} ({source})" if point.operator and source != point.operator else source
    place = PLACES.get(point.phase, between)
    if point.function and not point.by_scaler:
        place = f"{place} in {function_text(point.function)}".strip()
    return (
        f"{where}{f' {place}' if place else ''}: {format_count(point.calls / steps)} {each}. The host waits "
        f"{format_duration(point.wait_ns / steps)}, and then the device has no work for "
        f"{format_duration(point.drained_ns / steps)}."
    )


AROUND_MODEL = ("validation", "checkpoint", "other")
"""Phases with such work. Python in the forward pass belongs to the model."""


LOG_EVERY = 50
"""Lightning's default of ``log_every_n_steps``."""


def _less_between_batches(analysis: RankAnalysis) -> str:
    """Return the advice for work around the model. A setting that is in use is not advised."""
    loop = analysis.metadata.loop
    seldom = loop is not None and (loop.log_every_n_steps or 0) >= LOG_EVERY
    logging = "" if seldom else f"Trainer(log_every_n_steps={LOG_EVERY}), "
    return (
        f"Do less between batches: {logging}metrics at the end of the epoch, and callbacks that return early in "
        "on_train_batch_end."
    )


@rule("host-work", part=in_idle_time)
def host_work(analysis: RankAnalysis) -> Problem | None:
    """Find steps in which the device idles while the host runs nothing but Python.

    Python between operators counts as launch-bound instead.
    """
    idle, launches = analysis.idle, analysis.launches
    if idle is None:
        return None
    steps = max(idle.steps, 1)
    idle_ns = next((row.total_ns for row in idle.classes if row.name == "host_other"), 0) / steps
    if launches is not None and launches.launch_bound is not None:
        idle_ns -= launches.launch_bound.python_ns / steps
    if steps == 1 and analysis.metadata.loop is None:
        # The end of another recorder's only step may be that recorder at work, e.g. saving its trace.
        idle_ns -= next((gap.length_ns for gap in idle.longest if gap.after is None), 0)
    pauses = [pause for phase in AROUND_MODEL if analysis.pauses and (pause := analysis.pauses.phase(phase))]
    longest = max(pauses, key=lambda pause: pause.mean_ns, default=None)
    around_ns = sum(analysis.phases.time_ns(phase, "host_other") or 0.0 for phase in AROUND_MODEL)
    spent_ns = min(idle_ns, around_ns)
    compiled = analysis.compiled_calls
    if compiled is not None and worth_it(compiled.compile_ns / max(compiled.steps, 1), analysis):
        return None  # Python around a compilation runs once
    if analysis.operators is None or not analysis.breakdown.marked or spent_ns <= 0:
        # Without operators, their time looks like Python. A recording without marked steps also covers the time before
        # and after the training.
        return None
    return Problem(
        f"Host work: the device waits for Python {format_share(spent_ns / step_ns(analysis))} of {whole(analysis)}",
        (
            (
                f"The device idles {format_duration(spent_ns)} per step while the host runs neither operators nor "
                "runtime calls."
            ),
            usual_idle(analysis),
        ),
        _with_function(analysis, longest.function if longest else None, _less_between_batches(analysis)),
        SavingRange(
            idle_saving_ns(analysis, spent_ns / 2, 0.9 * spent_ns),
            "Done every tenth step, the work costs a tenth. Half of it may have to stay.",
        ),
        changes=SKIPPED_WORK,
    )


MIN_STALLED_SHARE = 0.05


@rule("queued-stalls", part=in_idle_time)
def queued_stalls(analysis: RankAnalysis) -> Problem | None:
    """Find long gaps in which the device idles although work was launched already.

    The device waits neither for the host nor for a launch. The recording does not show the reason, and may lack the
    work that ran.
    """
    idle = analysis.idle
    if idle is None:
        return None
    steps = max(idle.steps, 1)
    stalled_ns = idle.stalled_ns / steps
    if not step_ns(analysis) or stalled_ns < MIN_STALLED_SHARE * saving_whole_ns(analysis):
        return None
    gaps = idle.stalls / steps
    evidence = [
        (
            f"{counted(gaps, 'gap')} above 100 µs {each(analysis)}, {format_duration(stalled_ns)} together. Launched "
            "work waits there for something other than the host."
        )
    ]
    longest = next((gap for gap in idle.longest if gap.cause == "kernel_gap"), None)
    if longest is not None:
        where = f" in step {longest.step}" if analysis.breakdown.marked else ""
        evidence.append(
            f"The longest gap is {format_duration(longest.length_ns)}{where}, {format_duration(longest.start_ns)} "
            "after the start of the recording."
        )
    return Problem(
        f"Queued work does not start: the device idles {format_share(stalled_ns / step_ns(analysis))} of "
        f"{whole(analysis)} with launched work in its queue",
        evidence,
        "Run nvidia-smi and end other processes on the device. Then open the longest gap with lightning-perf view. If "
        "a cudaStreamWaitEvent precedes it, move both kernels to one stream. If a collective follows it, record all "
        "ranks and look for the slow one. Otherwise record again: the recorder may have lost the work in the gap.",
        SavingRange(
            (0.0, stalled_ns), "Nothing if the recording lacks the work in the gaps, all of them if the wait can go."
        ),
    )
