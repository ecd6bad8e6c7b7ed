"""The rule for functions that are compiled again because a condition of their compiled code does not hold any more."""

from __future__ import annotations

from lightning_perf.analysis.compilation.summary import CompiledFrame, CompileReport, Recompilations
from lightning_perf.findings.compilation.compile_finding import (
    compile_finding,
    frame_name,
    is_worth_it,
    of_fit,
    step_range,
)
from lightning_perf.findings.finding import Finding, Severity
from lightning_perf.findings.savings import counted
from lightning_perf.units import format_duration

__all__ = ["recompiles"]

NAMED = 3
"""Reasons that the evidence names."""

ADVICE = {
    "value": (
        "Keep the value constant, or pass it as a tensor. For an integer attribute of a module, set "
        "torch._dynamo.config.allow_unspec_int_on_nn_module = True."
    ),
    "tensor": "Give the input the same type and strides in each call, e.g. x = x.contiguous() before the call.",
    "object": "Use the same object in each call: make modules, functions and optimizers once, outside of the loop.",
    "mode": "Compile one function for training and another one for validation.",
    "other": "Set TORCH_LOGS=recompiles to see all of torch's reasons.",
}


def recompiles(report: CompileReport) -> Finding | None:
    """Find functions that are compiled again and again, and those on which torch gave up.

    The first version for another mode does not count: validation needs code of its own.

    Model: at most the time of these compilations goes away.
    """
    given_up = [frame for frame in report.frames if frame.limit_reached]
    if not given_up and not is_worth_it(report.avoidable_ns, report):
        return None
    rows = [(frame, group) for frame in report.frames for group in frame.recompilations if group.cause != "mode"]
    rows.sort(key=lambda row: -row[1].time_ns)
    if not rows:
        rows = [(frame, group) for frame in given_up for group in frame.recompilations]
    count = sum(group.count for _, group in rows)
    evidence = [_reason(frame, group) for frame, group in rows[:NAMED]]
    if given_up:
        names = ", ".join(frame_name(frame) for frame in given_up[:NAMED])
        evidence.append(f"torch gave up on {names}: further versions run uncompiled, in every later step.")
    if report.recorded_ns_per_step:
        evidence.append(f"Compilation took {format_duration(report.recorded_ns_per_step)} per recorded step.")
    severity: Severity | None = "high" if given_up else None
    return compile_finding(
        "recompiles",
        f"{counted(count, 'recompilation')}: {of_fit(report.avoidable_ns, report)}",
        evidence,
        _advice(rows[0][1]) if rows else ADVICE["other"],
        report=report,
        saving_ns=(0.0, float(report.avoidable_ns)),
        model="At most the time of these compilations goes away.",
        severity=severity,
    )


def _reason(frame: CompiledFrame, group: Recompilations) -> str:
    code = f" (in the line: {group.code})" if group.code else ""
    steps = step_range(group.first_step, group.last_step)
    return (
        f"{frame_name(frame)}: {counted(group.count, 'recompilation')} {steps}, {format_duration(group.time_ns)}. "
        f"Failed guard: {group.guard.rstrip('.')}{code}."
    )


def _advice(group: Recompilations) -> str:
    if group.cause != "shape":
        return ADVICE[group.cause]
    if group.name and group.dimension is not None:
        name = group.name if group.name.isidentifier() and not group.name.startswith("_") else "x"
        return (
            f"Mark the size as dynamic before the call: torch._dynamo.mark_dynamic({name}, {group.dimension}). Or "
            "compile with torch.compile(model, dynamic=True). If only the last batch is smaller, use "
            "DataLoader(drop_last=True)."
        )
    if group.name:
        return "Give the input the same number of dimensions in each call."
    return "Pad inputs to a few sizes, or take the condition on the size out of the compiled code."
