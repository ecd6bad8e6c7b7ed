"""The rule for compiled code that was meant to run as a CUDA graph, but does not."""

from __future__ import annotations

from lightning_perf.analysis.compilation.summary import CompileReport
from lightning_perf.findings.compilation.compile_finding import compile_finding
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.savings import counted

__all__ = ["cudagraph_skips"]

NAMED = 3
"""Reasons that the evidence names."""

ADVICE = (
    (
        "cpu device",
        (
            "Make all tensors of the compiled code on the GPU, e.g. torch.arange(n, device=x.device). Without a GPU, "
            'leave out mode="reduce-overhead".'
        ),
    ),
    ("mutat", "Do not change inputs in place: work on a copy, e.g. x = x.clone()."),
    ("multiple devices", "Use tensors of one device in the compiled code."),
    ("symbolic", "Pad inputs to a few sizes, and compile with torch.compile(model, dynamic=False)."),
    ("dynamic", "Pad inputs to a few sizes, and compile with torch.compile(model, dynamic=False)."),
    ("incompatible op", "Replace the operator that the reason names, or call it outside of the compiled code."),
)
"""Words of a reason, and the fix."""


def cudagraph_skips(report: CompileReport) -> Finding | None:
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
    reason = report.skipped_graphs[0].reason
    action = next((fix for word, fix in ADVICE if word in reason), "Set TORCH_LOGS=cudagraphs to see the whole reason.")
    return compile_finding(
        "cudagraph-skips",
        f"{counted(count, 'compiled graph')} {'runs' if count == 1 else 'run'} without a CUDA graph",
        evidence,
        action,
        report=report,
        saving_ns=None,
        severity="moderate",
    )
