"""Rules about the compilations of a fit by ``torch.compile``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from lightning_perf.analysis.compilation import BreakPlace, CompiledFrame, CompileReport, Recompilations
from lightning_perf.findings.finding import Problem, SavingRange, compile_rule
from lightning_perf.findings.fit import of_fit
from lightning_perf.run_files.fit.compilations import WRAPPER
from lightning_perf.units import counted, format_count, format_duration

NAMED = 3
"""Reasons or breaks that the evidence names."""


def line_name(file: str, line: int) -> str:
    """Return a line of a program in a few characters, e.g. ``model.py:16``."""
    return f"{PurePath(file).name}:{line}" if file else "an unknown line"


def frame_name(frame: CompiledFrame) -> str:
    """Return a function with its place: ``forward (model.py:16)``. A later part is ``forward after model.py:20``.

    The place of a module of torch's own classes is the module: ``forward of layers.0 (TransformerEncoderLayer)``.
    """
    if frame.module and PurePath(frame.file).parts[-2:] == WRAPPER:
        return f"forward of {frame.module}"
    name = frame.function or "a function"
    if frame.resumed_at is not None:
        return f"{name} after {line_name(frame.file, frame.resumed_at)}"
    return f"{name} ({line_name(frame.file, frame.line)})"


def step_range(first: int | None, last: int | None) -> str:
    """Return the steps in which something happened, as text.

    Example:
        >>> step_range(7, 7), step_range(7, 90), step_range(None, None)
        ('in step 7', 'in steps 7 to 90', 'before training')
    """
    if first is None or last is None:
        return "before training"
    return f"in step {first:,}" if first == last else f"in steps {first:,} to {last:,}"


@compile_rule("compile-cost")
def compile_cost(report: CompileReport) -> Problem | None:
    """Find compilations that take a large part of the fit, without those that `recompiles` is about."""
    cost_ns = report.time_ns - report.avoidable_ns
    if not report.frames:
        return None
    moments = (
        (report.before_ns, "before training"),
        (report.first_step_ns, "in the first step"),
        (report.step_ns, "in later steps"),
        (report.between_ns, "between steps, e.g. in validation"),
    )
    parts = ", ".join(f"{format_duration(time_ns)} {moment}" for time_ns, moment in moments if time_ns)
    rest = (
        f" Of this, {format_duration(report.avoidable_ns)} are avoidable recompilations." if report.avoidable_ns else ""
    )
    evidence = [f"{counted(report.compilations, 'compilation')}: {parts}.{rest}"]
    longest = report.frames[0]
    backend = ""
    if report.backend_ns is not None:
        backend = f"The backend takes {format_duration(report.backend_ns)} of the time. "
    if len(report.frames) > 1:
        evidence.append(f"{backend}The longest is {frame_name(longest)} with {format_duration(longest.time_ns)}.")
    else:
        evidence.append(f"{backend}The function is {frame_name(longest)}.")
    if report.cache_hits or report.cache_misses:
        hits, misses = report.cache_hits or 0, report.cache_misses or 0
        evidence.append(f"{format_count(hits)} of {counted(hits + misses, 'graph')} came from Inductor's cache.")
    if report.steps:
        least = format_duration(cost_ns / report.steps)
        evidence.append(
            f"In this fit of {counted(report.steps, 'step')}, it pays if it saves more than {least} per step."
        )
    misses = (report.cache_misses or 0) > 0
    keep = "Keep the compiled code between runs: set TORCHINDUCTOR_CACHE_DIR to a folder that lasts. " if misses else ""
    return Problem(
        f"torch.compile takes {of_fit(cost_ns, report.fit_ns)}",
        evidence,
        f"{keep}Compile only the block that repeats: model.block.compile(). To see whether compilation pays, "
        "record the fit without it as well: lightning-perf diff WITHOUT WITH.",
        SavingRange(
            (0.0, float(cost_ns)), "At most this time goes away. A warm cache saves the backend's part at most."
        ),
    )


RECOMPILE_FIXES = {
    "value": (
        "Keep the value constant, or pass it as a tensor. For an integer attribute of a module, set "
        "torch._dynamo.config.allow_unspec_int_on_nn_module = True."
    ),
    "tensor": "Give the input the same type and strides in each call, e.g. x = x.contiguous() before the call.",
    "object": "Use the same object in each call: make modules, functions and optimizers once, outside of the loop.",
    "mode": "Compile one function for training and another one for validation.",
    "other": "Set TORCH_LOGS=recompiles to see all of torch's reasons.",
}


@compile_rule("recompiles")
def recompiles(report: CompileReport) -> Problem | None:
    """Find functions that are compiled again and again, and those on which torch gave up.

    The first version for another mode does not count: validation needs code of its own.
    """
    given_up = [frame for frame in report.frames if frame.limit_reached]
    rows = [(frame, group) for frame in report.frames for group in frame.recompilations if group.cause != "mode"]
    rows.sort(key=lambda row: -row[1].time_ns)
    if not rows:
        rows = [(frame, group) for frame in given_up for group in frame.recompilations]
    count = sum(group.count for _, group in rows)
    evidence = [_recompile_reason(frame, group) for frame, group in rows[:NAMED]]
    if given_up:
        names = ", ".join(frame_name(frame) for frame in given_up[:NAMED])
        evidence.append(f"torch gave up on {names}: further versions run uncompiled, in every later step.")
    if report.recorded_ns_per_step:
        evidence.append(f"Compilation took {format_duration(report.recorded_ns_per_step)} per recorded step.")
    action = _recompile_fix(rows[0][1]) if rows else RECOMPILE_FIXES["other"]
    return Problem(
        f"{counted(count, 'recompilation')}: {of_fit(report.avoidable_ns, report.fit_ns)}",
        evidence,
        action,
        SavingRange((0.0, float(report.avoidable_ns)), "At most the time of these compilations goes away."),
        severity="high" if given_up else None,
        changes="drop_last=True leaves out the last samples of each epoch" if "drop_last" in action else "",
    )


def _recompile_reason(frame: CompiledFrame, group: Recompilations) -> str:
    code = f" (in the line: {group.code})" if group.code else ""
    steps = step_range(group.first_step, group.last_step)
    return (
        f"{frame_name(frame)}: {counted(group.count, 'recompilation')} {steps}, {format_duration(group.time_ns)}. "
        f"Failed guard: {group.guard.rstrip('.')}{code}."
    )


def _recompile_fix(group: Recompilations) -> str:
    if group.cause != "shape":
        return RECOMPILE_FIXES[group.cause]
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


BREAK_FIXES = (
    (
        ("Tensor.item()", "capture_scalar_outputs"),
        (
            "Move .item() out of the compiled code: return the tensor, and read it where you log it. Or set "
            "torch._dynamo.config.capture_scalar_outputs = True before you compile."
        ),
    ),
    (
        ("Data-dependent", "data-dependent"),
        "Replace the branch on a tensor's value: use torch.where, or torch.cond for branches with large work.",
    ),
    (
        ("print", "logging", "logger", "warnings"),
        "Print and log outside of the compiled code, or only if not torch.compiler.is_compiling().",
    ),
    (
        ("torch.compiler.disable", "torch._dynamo.disable", "disabled"),
        "Call the disabled function outside of the compiled code, e.g. after the last layer.",
    ),
)
"""Words of a reason, and the fix."""


@compile_rule("graph-breaks")
def graph_breaks(report: CompileReport) -> Problem | None:
    """Find the lines of a training step at which graphs end.

    The effect on the step depends on the operators that the compiler could fuse across the break, so no saving is
    estimated.
    """
    breaks = [each for each in report.breaks if each.in_training]
    if not breaks:
        return None
    hint = f"torch's hint: {breaks[0].hint}" if breaks[0].hint else ""
    action = _fix(breaks[0].reason, BREAK_FIXES) or hint or "Set TORCH_LOGS=graph_breaks to see the whole reason."
    return Problem(
        f"{counted(len(breaks), 'graph break')} in the training step",
        tuple(map(_break_evidence, breaks[:NAMED])),
        action,
    )


def _break_evidence(each: BreakPlace) -> str:
    code = f": {each.code}" if each.code else ""
    parts = [f"{line_name(each.file, each.line)}{code} ({each.reason.rstrip('.')})."]
    if each.calls_per_step and each.check_ns_per_step is not None:
        parts.append(
            f"The code after it is entered {counted(each.calls_per_step, 'time')} per step, and its guards take "
            f"{format_duration(each.check_ns_per_step)} per step."
        )
    return " ".join(parts)


SKIP_FIXES = (
    (
        ("cpu device",),
        (
            "Make all tensors of the compiled code on the GPU, e.g. torch.arange(n, device=x.device). Without a GPU, "
            'leave out mode="reduce-overhead".'
        ),
    ),
    (("mutat",), "Do not change inputs in place: work on a copy, e.g. x = x.clone()."),
    (("multiple devices",), "Use tensors of one device in the compiled code."),
    (("symbolic", "dynamic"), "Pad inputs to a few sizes, and compile with torch.compile(model, dynamic=False)."),
    (("incompatible op",), "Replace the operator that the reason names, or call it outside of the compiled code."),
)
"""Words of a reason, and the fix."""


def _fix(reason: str, fixes: Sequence[tuple[Sequence[str], str]]) -> str:
    """Return the first fix with a word that the reason has; empty if none has one."""
    return next((fix for words, fix in fixes if any(word in reason for word in words)), "")


@compile_rule("cudagraph-skips")
def cudagraph_skips(report: CompileReport) -> Problem | None:
    """Find compiled code without the CUDA graphs that its mode asks for.

    Each kernel of it is launched on its own. The effect depends on whether the step waits for launches, so no saving is
    estimated.
    """
    if not report.skipped_graphs:
        return None
    count = sum(each.count for each in report.skipped_graphs)
    evidence = []
    for each in report.skipped_graphs[:NAMED]:
        functions = f" in {', '.join(each.functions)}" if each.functions else ""
        evidence.append(f"{each.reason} ({counted(each.count, 'graph')}{functions}).")
    known = _fix(report.skipped_graphs[0].reason, SKIP_FIXES)
    return Problem(
        f"{counted(count, 'compiled graph')} {'runs' if count == 1 else 'run'} without a CUDA graph",
        evidence,
        known or "Set TORCH_LOGS=cudagraphs to see the whole reason.",
        severity="moderate",
    )
