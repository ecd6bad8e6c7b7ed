"""The rule for compilations that take a large part of the fit."""

from __future__ import annotations

from lightning_perf.analysis.compilation.summary import CompileReport
from lightning_perf.findings.compilation.compile_finding import compile_finding, frame_name, is_worth_it, of_fit
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.savings import counted
from lightning_perf.units import format_count, format_duration

__all__ = ["compile_cost"]


def compile_cost(report: CompileReport) -> Finding | None:
    """Find compilations that take a large part of the fit, without those that `recompiles` is about.

    Model: at most their time goes away. A warm cache saves the backend's part at most.
    """
    cost_ns = report.time_ns - report.avoidable_ns
    if not is_worth_it(cost_ns, report) or not report.frames:
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
    evidence.append(f"{backend}The longest is {frame_name(longest)} with {format_duration(longest.time_ns)}.")
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
    return compile_finding(
        "compile-cost",
        f"torch.compile takes {of_fit(cost_ns, report)}",
        evidence,
        (
            f"{keep}Compile only the block that repeats: model.block.compile(). To see whether compilation pays, "
            "record the fit without it as well: lightning-perf diff WITHOUT WITH."
        ),
        report=report,
        saving_ns=(0.0, float(cost_ns)),
        model="At most this time goes away. A warm cache saves the backend's part at most.",
    )
