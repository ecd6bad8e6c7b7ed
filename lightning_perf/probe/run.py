"""Runs a probe: plans it from a trace, lets a worker process measure, and estimates the effect of each change."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lightning_perf.errors import TraceError
from lightning_perf.probe.estimate import Saving, estimate_calls, estimate_fixed, widen
from lightning_perf.probe.messages import Begin, Measured, Ready, Task
from lightning_perf.probe.plan import Plan, plan_probe
from lightning_perf.probe.settings import CURRENT, Setting
from lightning_perf.run_files.probe import Probe, ProbedCall, ProbedChange
from lightning_perf.run_files.traces import rank_in_name
from lightning_perf.trace.trace import Trace
from lightning_perf.workers.process import WorkerProcess

__all__ = ["DEFAULT_SECONDS", "probe_trace"]

DEFAULT_SECONDS = 5.0
"""Time for a probe, the start of its worker process included."""

START_S = 120.0
"""Longest wait for the worker process to load torch."""

LEAST_SHARE = 0.5
"""Share of the time that is for measuring, even if the worker process is slow to start on a busy machine."""

GRACE_S = 30.0
"""Time that a worker process may take beyond its task's, before it is ended."""

MOST_CALLS = 50
"""Calls that the file lists."""

KEPT_OVERHEAD = 0.8
"""Least share of the time outside of operators that does not grow with the batch."""


def probe_trace(trace: Trace, seconds: float = DEFAULT_SECONDS, *, has_cuda: bool = False) -> Probe:
    """Probe a recording on this machine, in a worker process.

    Args:
        trace: The recording.
        seconds: Time for all of it.
        has_cuda: Whether this machine has a CUDA device.

    Returns:
        The result.

    Raises:
        TraceError: The recording cannot be probed here.
        WorkerError: The worker process failed.
    """
    begin = time.perf_counter()
    with WorkerProcess("lightning_perf.probe.worker:main", Begin(), path=sys.path) as worker:
        plan = plan_probe(trace, seconds, has_cuda=has_cuda)
        if plan is None:
            raise TraceError(
                trace.sources[0],
                "has no operator calls that this machine can repeat",
                "Record with PerfCallback(record_shapes=True), and probe on a machine with the same kind of device",
            )
        worker.receive(Ready, timeout_s=START_S)
        left_s = max(LEAST_SHARE * seconds, begin + seconds - time.perf_counter())
        task = _with_seconds(plan.task, left_s)
        worker.send(task)
        measured = worker.receive(Measured, timeout_s=left_s + GRACE_S)
    return build_probe(trace, plan, measured, time.perf_counter() - begin)


def _with_seconds(task: Task, seconds: float) -> Task:
    import msgspec

    return msgspec.structs.replace(task, seconds=seconds)


def build_probe(trace: Trace, plan: Plan, measured: Measured, seconds: float) -> Probe:
    """Make the result from the times of the worker process."""
    calls = plan.calls
    changes = [change for setting in plan.task.settings[1:] if (change := _change(plan, measured, setting)) is not None]
    found = {(one.call, one.setting): one for one in measured.times}
    rows = []
    covered = 0.0
    for place, call in enumerate(calls.calls):
        current = found.get((place, CURRENT))
        if current is None:
            continue
        recorded = (call.forward_ns + call.backward_ns) / calls.steps
        covered += recorded
        rows.append(
            ProbedCall(
                name=call.name.removeprefix("aten::"),
                shapes=call.shapes,
                calls=call.calls / calls.steps,
                recorded_ns=recorded,
                current_ns=_median(current.forward_ns) + _median(current.backward_ns),
                changed_ns={
                    setting.name: _median(one.forward_ns) + _median(one.backward_ns)
                    for setting in plan.task.settings[1:]
                    if (one := found.get((place, setting.name))) is not None
                },
            )
        )
    optimizer = _optimizer_change(plan, measured, slowdown=max(1.0, _slowdown(rows)))
    rows.sort(key=lambda row: -row.recorded_ns)
    operator_ns = sum(call.forward_ns + call.backward_ns for call in calls.calls) + calls.unmatched_ns
    processor = trace.metadata.processor
    recorded_on = processor.name if processor is not None and not calls.on_device else None
    return Probe(
        device=measured.device,
        rank=trace.metadata.rank if trace.metadata.rank is not None else rank_in_name(Path(trace.sources[0]).name),
        sources=tuple(Path(source).name for source in trace.sources),
        step_ns=plan.step_ns,
        operator_ns=operator_ns / calls.steps,
        covered_ns=covered,
        seconds=seconds,
        changes=(*changes, *([optimizer] if optimizer is not None else [])),
        calls=tuple(rows[:MOST_CALLS]),
        skipped={calls.calls[place].name: reason for place, reason in sorted(measured.skipped.items())},
        launch_ns=measured.launch_ns,
        same_device=recorded_on is None or recorded_on == measured.device,
    )


def _change(plan: Plan, measured: Measured, setting: Setting) -> ProbedChange | None:
    saving = estimate_calls(plan.calls, measured.times, CURRENT, setting.name, setting.batch)
    if not saving.rounds:
        return None
    low, high = widen(saving)
    middle = saving.saving_ns
    if setting.batch > 1:
        fixed = _fixed_ns(plan)
        share = 1 - 1 / setting.batch
        low, middle, high = (
            low + KEPT_OVERHEAD * share * fixed,
            middle + (1 + KEPT_OVERHEAD) / 2 * share * fixed,
            high + share * fixed,
        )
    return _named(setting.name, _text(setting, plan), middle, low, high, saving)


def _fixed_ns(plan: Plan) -> float:
    """Return the time per step that does not grow with the batch: the optimizer, and Python between operators."""
    optimizer, host = plan.optimizer, plan.host
    fixed = optimizer.host_ns / max(1, optimizer.steps) if optimizer is not None else 0.0
    return fixed + (host.gaps_ns / host.steps if host is not None else 0.0)


def _slowdown(rows: Sequence[ProbedCall]) -> float:
    """Return how much longer the calls took in the recording than in the probe."""
    probed = sum(row.calls * row.current_ns for row in rows)
    return sum(row.recorded_ns for row in rows) / probed if probed else 1.0


def _optimizer_change(plan: Plan, measured: Measured, slowdown: float) -> ProbedChange | None:
    task, steps = plan.task.optimizer, plan.optimizer
    if task is None or steps is None or not measured.optimizer:
        return None
    recorded_ns = steps.host_ns / max(1, steps.steps)
    saving = estimate_fixed(recorded_ns, measured.optimizer, task.implementation, "fused")
    if not saving.rounds:
        return None
    low, high = widen(saving)
    # A recorded step has pauses and fresh memory that the usual step has not. Then the probe is nearer to it.
    usual = min(1.0, _median(measured.optimizer[task.implementation]) * slowdown / recorded_ns)
    low *= usual
    return _named("fused-optimizer", f"{task.name}(fused=True)", saving.saving_ns, low, high, saving)


def _named(name: str, setting: str, middle: float, low: float, high: float, saving: Saving) -> ProbedChange:
    return ProbedChange(name, setting, middle, low, high, saving.noise_ns, saving.measured_ns, saving.rounds)


def _text(setting: Setting, plan: Plan) -> str:
    if setting.threads is not None:
        return f"{setting.threads} threads"
    if setting.batch > 1:
        return f"batch_size={(plan.task.batch_size or 0) * setting.batch}"
    return {"bf16": "bf16-mixed", "channels-last": "channels last", "fp16": "16-mixed", "tf32": "TF32"}.get(
        setting.name, setting.name
    )


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return float(ordered[len(ordered) // 2]) if ordered else 0.0
