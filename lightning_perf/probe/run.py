"""Runs a probe: plans it from a trace, lets a worker process measure, and estimates the effect of each change."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from lightning_perf.analysis.intervals import without_tails
from lightning_perf.analysis.model.operators import OperatorCalls
from lightning_perf.analysis.model.workload import workload
from lightning_perf.analysis.steps.step_times import summarize_step_times
from lightning_perf.errors import TraceError
from lightning_perf.machine.environment import load_average, missing_cpp_compiler
from lightning_perf.machine.processor import busy_s
from lightning_perf.probe.estimate import (
    BATCH_ERRORS,
    OPERATOR_ERRORS,
    OPTIMIZER_ERRORS,
    Saving,
    StepParts,
    estimate_calls,
    estimate_compile,
    estimate_fixed,
    estimate_graph,
    fit_into_step,
    lower_quartile,
    middle_half,
    pace_of_recording,
    usual_calls,
    usual_optimizer_ns,
    widen,
)
from lightning_perf.probe.plan import Plan, plan_probe, without_busy_cores
from lightning_perf.probe.replay.messages import (
    CURRENT,
    FUSED,
    THREADS,
    Begin,
    CompiledTimes,
    GraphTimes,
    Measured,
    Ready,
    Replayed,
    Setting,
    Task,
    TransferTimes,
)
from lightning_perf.run_files.probe import DEFAULT_SECONDS, Probe, ProbedCall, ProbedChange, ProbedTransfer
from lightning_perf.run_files.steps import STEPS
from lightning_perf.run_files.traces import find_traces, group_windows, rank_in_name
from lightning_perf.trace.concatenate import concatenate
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.trace import Trace
from lightning_perf.workers.limits import usable_cpus
from lightning_perf.workers.process import WorkerError, WorkerProcess

LEAST_SHARE = 0.4
"""Share of the time that is for measuring, even if the worker process is slow to start on a busy machine."""

END_S = 0.3
"""Time to end the worker process, which may hold gigabytes."""

MOST_CALLS = 50
"""Calls that the file lists."""

MANY_FAULTS = 0.1
"""Cost of page faults from which they widen ranges, as a share of the step. Fewer ones are within the other errors."""

LEAST_GROWN = 0.5
"""Least share of the operators' time in calls that grow with the batch. Usually, only calls on weights do not."""

KEPT_OVERHEAD = 0.8
"""Least share of the time outside of operators that does not grow with the batch."""


def probe_trace(
    trace: Trace,
    worker: ProbeWorker,
    seconds: float = DEFAULT_SECONDS,
    *,
    has_cuda: bool = False,
    usual_step_ns: float | None = None,
    compiles: bool = False,
) -> Probe:
    """Probe a recording on this machine, in the worker process.

    Compiling the calls of a step takes minutes, which do not count as seconds.
    """
    begin = time.perf_counter()
    plan = plan_probe(trace, seconds, has_cuda=has_cuda)
    if plan is None:
        raise TraceError(
            trace.sources[0],
            "has no operator calls that this machine can repeat",
            "Record with PerfCallback(record_shapes=True), and probe on a machine with the same kind of device",
        )
    plan = replace(plan, task=with_arguments(plan.task), usual_step_ns=usual_step_ns)
    plan = without_busy_cores(plan, worker.wait_until_ready())
    left_s = max(LEAST_SHARE * seconds, begin + seconds - END_S - time.perf_counter())
    measured = worker.measure(msgspec.structs.replace(plan.task, seconds=left_s))
    graph = worker.replayed() if plan.task.device == "cuda" else None
    compiled: CompiledTimes | None = None
    reason: str | None = None
    if compiles:
        worker.end()
        compiled, reason = _compiled(plan.task)
    probe = build_probe(trace, plan, measured, time.perf_counter() - begin, graph, compiled)
    return probe if reason is None else replace(probe, skipped={"torch.compile": reason, **probe.skipped})


def _compiled(task: Task) -> tuple[CompiledTimes | None, str | None]:
    """Return the times of the compiled calls, or the reason why there are no such times."""
    if task.device != "cpu":
        return None, "for a training on a GPU, lightning-perf tune measures it"
    if missing_cpp_compiler() is not None:
        return None, "it needs a C++ compiler: install g++"
    try:
        with WorkerProcess(COMPILER, task, path=sys.path, environment=ENVIRONMENT) as process:
            return process.receive(CompiledTimes, timeout_s=COMPILE_S), None
    except WorkerError as error:
        return None, str(error)


def with_arguments(task: Task) -> Task:
    """Return a task with the arguments of its calls in each setting. The random state stays unchanged.

    A larger batch is left out if too few calls grow with it: then the recording does not show the batch size.
    """
    import torch

    from lightning_perf.probe.replay.data_flow import follow

    with torch.random.fork_rng(devices=[]):
        bound, skipped = follow(task.calls, task.settings, task.batch_size, task.device)
    made = [place for place, settings in enumerate(bound) if CURRENT in settings]

    def grows(name: str) -> bool:
        grown = [place for place in made if name in bound[place] and bound[place][name] != bound[place][CURRENT]]
        return task.calls.share_of(grown) >= LEAST_GROWN * task.calls.share_of(made)

    settings = tuple(setting for setting in task.settings if setting.batch == 1 or grows(setting.name))
    return msgspec.structs.replace(task, bound=pickle.dumps(bound), skipped=skipped, settings=settings)


def build_probe(
    trace: Trace,
    plan: Plan,
    measured: Measured,
    seconds: float,
    graph: GraphTimes | None = None,
    compiled: CompiledTimes | None = None,
) -> Probe:
    """Make the result from the times of the worker processes."""
    pace = pace_of_recording(plan.calls, measured.times, CURRENT)
    updates, optimizer = plan.optimizer, plan.task.optimizer
    recorded = StepParts(plan.calls, updates.host_ns / max(1, updates.steps) if updates is not None else 0.0)
    probed_ns = measured.optimizer.get(optimizer.implementation, ()) if optimizer is not None else ()
    parts = StepParts(
        usual_calls(plan.calls, measured.times, CURRENT), usual_optimizer_ns(recorded.optimizer_ns, probed_ns, pace)
    )
    if plan.host is not None and plan.usual_step_ns is not None:
        parts = fit_into_step(recorded, parts, plan.gaps_ns, plan.usual_step_ns)
    calls, optimizer_ns = parts
    plan = replace(plan, calls=calls)
    rows = _rows(calls, measured, [setting.name for setting in plan.task.settings[1:]])
    changes = [
        *(_change(plan, measured, setting, optimizer_ns) for setting in plan.task.settings[1:]),
        _optimizer_change(plan, measured, optimizer_ns),
    ]
    same_device = _is_same_device(trace, measured, on_device=calls.on_device)
    if graph is not None and plan.floor is not None and same_device:
        changes.append(estimate_graph(graph, calls, plan.floor, plan.step_ns, plan.added_ns))
    if compiled is not None:
        python_ns = max(0.0, plan.python_ns - (plan.added_ns or 0.0))
        changes.append(estimate_compile(compiled, calls, python_ns))
    return Probe(
        device=measured.device,
        rank=trace.metadata.rank if trace.metadata.rank is not None else rank_in_name(Path(trace.sources[0]).name),
        sources=tuple(Path(source).name for source in trace.sources),
        step_ns=plan.step_ns,
        operator_ns=calls.step_ns,
        covered_ns=sum((row.recorded_ns for row in rows), 0.0),
        seconds=seconds,
        changes=tuple(change for change in changes if change is not None),
        calls=tuple(sorted(rows, key=lambda row: -row.recorded_ns)[:MOST_CALLS]),
        skipped={calls.calls[place].name: reason for place, reason in sorted(measured.skipped.items())},
        launch_ns=measured.launch_ns,
        compile_s=compiled.compile_s if compiled is not None else None,
        same_device=same_device,
        transfer=_transfer(measured.transfer),
    )


def _rows(calls: OperatorCalls, measured: Measured, changes: Sequence[str]) -> list[ProbedCall]:
    """Return the calls that were measured in the setting of the recording, in the order of the step."""
    probed_ns = {
        (one.call, one.setting): lower_quartile(one.forward_ns) + lower_quartile(one.backward_ns)
        for one in measured.times
    }
    return [
        ProbedCall(
            name=call.name.removeprefix("aten::"),
            shapes=call.shapes,
            calls=call.calls / calls.steps,
            recorded_ns=call.time_ns / calls.steps,
            current_ns=probed_ns[place, CURRENT],
            changed_ns={name: probed_ns[place, name] for name in changes if (place, name) in probed_ns},
        )
        for place, call in enumerate(calls.calls)
        if (place, CURRENT) in probed_ns
    ]


def _transfer(times: TransferTimes | None) -> ProbedTransfer | None:
    if times is None:
        return None
    (sent_low, sent_high), (low, high) = (middle_half(part) for part in (times.sent_ns, times.received_ns))
    return ProbedTransfer(sent_low, sent_high, low, high, len(times.received_ns))


def _is_same_device(trace: Trace, measured: Measured, *, on_device: bool) -> bool:
    """Return whether the probe ran on the device of the recording: by its ID, or by its name without an ID."""
    settings, processor = trace.metadata.settings, trace.metadata.processor
    if settings is not None and settings.uuid is not None and measured.uuid is not None:
        return settings.uuid == measured.uuid
    name = next(iter(workload(trace).devices), None) if on_device else processor.name if processor is not None else None
    return name is None or name == measured.device


def _change(plan: Plan, measured: Measured, setting: Setting, optimizer_ns: float) -> ProbedChange | None:
    saving = estimate_calls(plan.calls, measured.times, CURRENT, setting.name, setting.batch)
    if not saving.rounds:
        return None
    faults_ns = _lacking_faults_ns(plan, measured)
    low, high = widen(saving, BATCH_ERRORS if setting.batch > 1 else OPERATOR_ERRORS, faults_ns)
    middle = saving.saving_ns
    if setting.threads is not None and plan.task.optimizer is not None:
        optimizer = estimate_fixed(optimizer_ns, measured.optimizer, plan.task.optimizer.implementation, THREADS)
        optimizer_low, optimizer_high = widen(optimizer, OPTIMIZER_ERRORS)
        low, middle, high = low + optimizer_low, middle + optimizer.saving_ns, high + optimizer_high
    if setting.batch > 1:
        # The optimizer, and Python between operators, take as long for a larger batch.
        fixed = optimizer_ns + plan.gaps_ns
        share = 1 - 1 / setting.batch
        low, middle, high = (
            low + KEPT_OVERHEAD * share * fixed,
            middle + (1 + KEPT_OVERHEAD) / 2 * share * fixed,
            high + share * fixed,
        )
    return replace(_named(setting.name, _text(setting, plan), middle, low, high, saving), faults_ns=faults_ns)


def _lacking_faults_ns(plan: Plan, measured: Measured) -> float:
    """Return the cost per step of page faults that the probe lacks; 0 if it is small, or if they were not counted."""
    if measured.page_faults is None:
        return 0.0
    cost_ns = plan.page_fault_ns * max(0.0, plan.page_faults - measured.page_faults)
    return cost_ns if cost_ns >= MANY_FAULTS * (plan.usual_step_ns or plan.step_ns) else 0.0


def _optimizer_change(plan: Plan, measured: Measured, usual_ns: float) -> ProbedChange | None:
    task = plan.task.optimizer
    if task is None or not usual_ns or not measured.optimizer:
        return None
    saving = estimate_fixed(usual_ns, measured.optimizer, task.implementation, FUSED)
    if not saving.rounds:
        return None
    low, high = widen(saving, OPTIMIZER_ERRORS)
    return _named("fused-optimizer", f"{task.name}(fused=True)", saving.saving_ns, low, high, saving)


def _named(name: str, setting: str, middle: float, low: float, high: float, saving: Saving) -> ProbedChange:
    return ProbedChange(
        name, setting, middle, low, high, saving.noise_ns, saving.measured_ns, saving.rounds, saving.similar_ns
    )


def _text(setting: Setting, plan: Plan) -> str:
    if setting.threads is not None:
        return f"{setting.threads} threads"
    if setting.batch > 1:
        return f"batch_size={(plan.task.batch_size or 0) * setting.batch}"
    return {"bf16": "bf16-mixed", "channels-last": "channels last", "fp16": "16-mixed", "tf32": "TF32"}.get(
        setting.name, setting.name
    )


def probe_path(path: Path, seconds: float, *, compiles: bool = False) -> Probe:
    """Probe a recording; of several ranks, the first one."""
    folder = path if path.is_dir() else None
    windows = group_windows(find_traces(path))[0]
    try:
        with ProbeWorker() as worker:
            trace = without_tails(concatenate([read_trace(window, processes=usable_cpus()) for window in windows]))
            usual_ns = _usual_step_ns(folder, trace.metadata.rank or 0) if folder is not None else None
            return probe_trace(trace, worker, seconds, has_cuda=has_cuda(), usual_step_ns=usual_ns, compiles=compiles)
    except WorkerError as error:
        raise TraceError(
            path, f"could not be probed: {error}", "Try again with more memory or more --seconds"
        ) from error


def _usual_step_ns(folder: Path, rank: int) -> float | None:
    """Return the median step time without the profiler; ``None`` if the run did not keep it."""
    path = STEPS.path(folder, rank)
    try:
        samples = STEPS.read(path) if path.exists() else ()
    except TraceError:
        return None
    times = summarize_step_times(samples) if samples else None
    return None if times is None or times.only_profiled else times.p50_ns


def has_cuda() -> bool:
    """Return whether this machine has a CUDA device that torch can use."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


ENVIRONMENT = {
    # oneDNN keeps 1,024 compiled primitives (oneDNN Developer Guide, "Primitive Cache"). A training needs fewer. A
    # probe needs those of all settings: without room for them, it would compile each convolution in each round.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32768",
    # The state that glibc reaches in a long training (mallopt(3)). It returns freed blocks of over 32 MiB, and free
    # memory of over 64 MiB at the end of the heap. So large tensors cost page faults, as in the training. Without
    # fixed thresholds, the settings would change them for each other.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
"""Environment of the worker process, in which all settings have the same conditions."""

START_S = 120.0
"""Longest wait for the worker process to load torch."""

REPLAY_S = 10.0
"""Longest wait for a replay from a CUDA graph, which usually takes less than a second."""

COMPILER = "lightning_perf.probe.replay.call_graph:main"

COMPILE_S = 600.0
"""Longest wait for the compiler."""

GRACE_S = 30.0
"""Time that a worker process may take beyond its task's, before it is ended."""


class OthersWatch:
    """Counts the cores that programs other than this process and its worker process keep busy, from its creation on."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), busy_s(), time.process_time()

    def busy_cores(self, worker_s: float) -> float:
        """Return the cores that other programs have kept busy, on average.

        If the system does not count processor time, the load average without the training itself stands for it.
        """
        began, busy_before_s, own_before_s = self._start
        busy_after_s = busy_s()
        if busy_before_s is None or busy_after_s is None:
            return max(0.0, (load_average() or 0.0) - 1.0)
        own_s = time.process_time() - own_before_s + worker_s
        elapsed_s = time.perf_counter() - began
        return max(0.0, busy_after_s - busy_before_s - own_s) / elapsed_s


class ProbeWorker:
    """A process that loads torch from its creation on, while the caller reads and plans, and then measures a task.

    Its methods raise `WorkerError` if it has ended or takes too long.
    """

    def __init__(self) -> None:
        self._others = OthersWatch()
        self._has_ended = False
        self._process = WorkerProcess(
            "lightning_perf.probe.replay.worker:main", Begin(), path=sys.path, environment=ENVIRONMENT
        )

    def __enter__(self) -> ProbeWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process, which may hold gigabytes. Otherwise it ends with the ``with`` block."""
        if not self._has_ended:
            self._has_ended = True
            self._process.kill()  # it would take a second to end by itself

    def wait_until_ready(self) -> float:
        """Wait until torch is loaded, and return the cores that other programs kept busy meanwhile."""
        return self._others.busy_cores(self._process.receive(Ready, timeout_s=START_S).cpu_s)

    def measure(self, task: Task) -> Measured:
        """Return the times of a task."""
        self._process.send(task)
        return self._process.receive(Measured, timeout_s=task.seconds + GRACE_S)

    def replayed(self) -> GraphTimes | None:
        """Return the times of the last task's calls replayed from a CUDA graph; ``None`` if they cannot be."""
        with suppress(WorkerError):
            return self._process.receive(Replayed, timeout_s=REPLAY_S).times
        return None
