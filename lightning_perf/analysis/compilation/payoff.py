"""The compilations of two fits: their time in both, and after how many steps compilation pays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lightning_perf.analysis.compilation.summary import CompileReport
from lightning_perf.units import format_count, format_duration


@dataclass(frozen=True)
class CompileDiff:
    """The compilations of two fits.

    Attributes:
        before_ns: Time of all compilations before; 0 without any.
        after_ns: The same after.
        recompilations_before: Recompilations before.
        recompilations_after: The same after.
        breaks_before: Lines with a graph break before.
        breaks_after: The same after.
        saved_ns_per_step: Median step of the fit without compilation, minus that of the compiled fit; ``None`` unless
            exactly one of them compiles, and both are the same training.
        pays_after_steps: Steps until that saves the time of compilation; ``None`` if it never does.
        steps: Steps of the fit that compiles; ``None`` if both or none of them do.
        summary: All of this in sentences.
    """

    before_ns: int
    after_ns: int
    recompilations_before: int
    recompilations_after: int
    breaks_before: int
    breaks_after: int
    saved_ns_per_step: float | None = None
    pays_after_steps: int | None = None
    steps: int | None = None
    summary: str = ""


def diff_compilations(
    before: CompileReport | None,
    after: CompileReport | None,
    *,
    step_before_ns: float | None = None,
    step_after_ns: float | None = None,
) -> CompileDiff | None:
    """Compare the compilations of two fits.

    Args:
        step_before_ns: Median step before, without the profiler; None if it is unknown, or cannot be compared.

    Example:
        >>> diff_compilations(None, None) is None
        True
    """
    if before is None and after is None:
        return None
    saved_ns = pays_after = steps = None
    compiled = after if before is None else before
    if (before is None or after is None) and compiled is not None:
        steps = compiled.steps
        if step_before_ns and step_after_ns:
            saved_ns = (step_before_ns - step_after_ns) * (1 if before is None else -1)
            pays_after = math.ceil(compiled.time_ns / saved_ns) if saved_ns > 0 else None
    (before_ns, again_before, breaks_before), (after_ns, again_after, breaks_after) = map(_counts, (before, after))
    found = CompileDiff(
        before_ns=before_ns,
        after_ns=after_ns,
        recompilations_before=again_before,
        recompilations_after=again_after,
        breaks_before=breaks_before,
        breaks_after=breaks_after,
        saved_ns_per_step=saved_ns,
        pays_after_steps=pays_after,
        steps=steps,
    )
    return replace(found, summary=" ".join(_sentences(found)))


def _counts(report: CompileReport | None) -> tuple[int, int, int]:
    """Return the time of all compilations, the recompilations, and the lines with a graph break."""
    return (report.time_ns, report.recompilations, len(report.breaks)) if report is not None else (0, 0, 0)


def _sentences(found: CompileDiff) -> Iterator[str]:
    before, after = (
        _side(time_ns, recompilations, breaks)
        for time_ns, recompilations, breaks in (
            (found.before_ns, found.recompilations_before, found.breaks_before),
            (found.after_ns, found.recompilations_after, found.breaks_after),
        )
    )
    yield f"Compilation took {before} before, and {after} after."
    if found.saved_ns_per_step is None:
        return
    if found.pays_after_steps is None:
        yield "The compiled fit has no faster steps, so compilation does not pay."
        return
    had = f" The compiled fit has {format_count(found.steps)}." if found.steps is not None else ""
    saved = format_duration(found.saved_ns_per_step)
    yield f"It saves {saved} per step (median) and pays after {format_count(found.pays_after_steps)} steps.{had}"


def _side(time_ns: int, recompilations: int, breaks: int) -> str:
    if not time_ns:
        return "no time"
    parts = [
        f"{format_count(number)} {noun if number == 1 else f'{noun}s'}"
        for number, noun in ((recompilations, "recompilation"), (breaks, "graph break"))
        if number
    ]
    return f"{format_duration(time_ns)} ({', '.join(parts)})" if parts else format_duration(time_ns)
