"""The rule for lines at which ``torch.compile`` has to end a graph."""

from __future__ import annotations

from lightning_perf.analysis.compilation.summary import BreakPlace, CompileReport
from lightning_perf.findings.compilation.compile_finding import compile_finding, line_name
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.savings import counted
from lightning_perf.units import format_duration

__all__ = ["graph_breaks"]

NAMED = 3
"""Breaks that the evidence names."""

ADVICE = (
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


def graph_breaks(report: CompileReport) -> Finding | None:
    """Find the lines of a training step at which graphs end.

    The effect on the step depends on the operators that the compiler could fuse across the break, so no saving is
    estimated.
    """
    breaks = [each for each in report.breaks if each.in_training]
    if not breaks:
        return None
    return compile_finding(
        "graph-breaks",
        f"{counted(len(breaks), 'graph break')} in the training step",
        tuple(map(_evidence, breaks[:NAMED])),
        _advice(breaks[0]),
        report=report,
        saving_ns=None,
    )


def _evidence(each: BreakPlace) -> str:
    code = f": {each.code}" if each.code else ""
    parts = [f"{line_name(each.file, each.line)}{code} ({each.reason.rstrip('.')})."]
    if each.calls_per_step and each.check_ns_per_step is not None:
        parts.append(
            f"The code after it is entered {counted(each.calls_per_step, 'time')} per step, and its guards take "
            f"{format_duration(each.check_ns_per_step)} per step."
        )
    return " ".join(parts)


def _advice(each: BreakPlace) -> str:
    known = (fix for words, fix in ADVICE if any(word in each.reason for word in words))
    hint = f"torch's hint: {each.hint}" if each.hint else ""
    return next(known, hint) or "Set TORCH_LOGS=graph_breaks to see the whole reason."
