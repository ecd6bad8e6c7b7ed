"""A finding about the compilations of a fit: thresholds, names of functions, and the saving as a part of the fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePath

from lightning_perf.analysis.compilation.summary import CompiledFrame, CompileReport
from lightning_perf.findings.finding import MIN_SHARE, Finding, Severity, finding
from lightning_perf.findings.fit.fit_finding import MIN_SAVING_NS
from lightning_perf.units import format_duration, format_share

__all__ = ["compile_finding", "frame_name", "is_worth_it", "line_name", "of_fit", "step_range"]


def is_worth_it(time_ns: float, report: CompileReport) -> bool:
    """Return whether a time is large enough to report: 1 s, and 3 % of the fit if that is known."""
    return time_ns >= MIN_SAVING_NS and time_ns >= MIN_SHARE * (report.fit_ns or 0)


def of_fit(time_ns: float, report: CompileReport) -> str:
    """Return a time with its share of the fit, as text."""
    share = f" ({format_share(time_ns / report.fit_ns)} of the fit)" if report.fit_ns else ""
    return f"{format_duration(time_ns)}{share}"


def line_name(file: str, line: int) -> str:
    """Return a line of a program in a few characters, e.g. ``model.py:16``."""
    return f"{PurePath(file).name}:{line}" if file else "an unknown line"


def frame_name(frame: CompiledFrame) -> str:
    """Return a function with its place: ``forward (model.py:16)``. A later part is ``forward after model.py:20``."""
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


def compile_finding(
    kind: str,
    title: str,
    evidence: Iterable[str],
    action: str,
    *,
    report: CompileReport,
    saving_ns: tuple[float, float] | None,
    model: str = "",
    severity: Severity | None = None,
) -> Finding:
    """Make a finding about the compilations of a fit.

    Args:
        kind: The ID of the rule.
        title: The problem in one clause.
        evidence: Figures that show it.
        action: The fix.
        report: The compilations.
        saving_ns: Least and most estimated saving in nanoseconds of the fit; None if no model gives one.
        model: How the saving was estimated.
        severity: The severity; None for that of the saving.
    """
    if saving_ns is None or report.fit_ns is None:
        return Finding(kind, severity or "low", title, tuple(evidence), action, None, None, "", report.rank, per="fit")
    made = finding(
        kind,
        title,
        evidence,
        action,
        saving_ns=saving_ns,
        step_ns=float(report.fit_ns),
        model=model,
        rank=report.rank,
    )
    return replace(made, per="fit", severity=severity or made.severity)
