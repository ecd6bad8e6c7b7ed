"""The time of a whole fit as console text."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from lightning_perf.analysis.steps.fit_time import FitGroup, FitPart, FitTime
from lightning_perf.report.console.layout import table
from lightning_perf.report.labels import count_of
from lightning_perf.terminal_text import plain
from lightning_perf.units import format_duration, format_rate, format_share

__all__ = ["fit_sentence", "fit_time_section"]

MAX_PARTS = 4
"""Parts of a group that the table shows."""

LEAST_PART = 0.001
"""Share of the fit from which the table shows a part."""

NAMED_GROUPS = 3

ENDS = {
    "report": "The account ends where this report is made. The tear-down of the Trainer comes after it.",
    "exception": "The account ends at the error that ended the fit.",
}


def fit_sentence(fit: FitTime) -> str:
    """Return the time of a fit and its largest groups in a sentence."""
    largest = sorted(fit.groups, key=lambda group: -group.time_ns)[:NAMED_GROUPS]
    parts = ", ".join(f"{format_share(group.share)} {group.group}" for group in largest)
    return f"The fit takes {format_duration(fit.wall_ns)}: {parts}."


def fit_time_section(fit: FitTime) -> RenderableType:
    """Return a table of the groups of a fit with their largest parts, and the figures of the whole fit."""
    grid = table("", "time", "share", "calls")
    for group in fit.groups:
        grid.add_row(group.group, format_duration(group.time_ns), format_share(group.share), _calls(group))
        shown = [part for part in group.parts if part.name and part.share >= LEAST_PART][:MAX_PARTS]
        if len(shown) == 1 and len([part for part in group.parts if part.time_ns]) == 1:
            continue
        for part in shown:
            grid.add_row(plain(f"  {part.name}"), format_duration(part.time_ns), format_share(part.share), _count(part))
    facts = [f"{format_duration(fit.wall_ns)} in all", count_of(fit.steps, "step"), count_of(fit.epochs, "epoch")]
    if fit.first_step_ns is not None:
        facts.append(f"first step complete after {format_duration(fit.first_step_ns)}")
    if fit.samples_per_second is not None:
        rates = [format_rate(fit.samples_per_second, "samples")]
        if fit.tokens_per_second is not None:
            rates.append(format_rate(fit.tokens_per_second, "tokens"))
        facts.append(f"{' and '.join(rates)} over the whole fit")
    lines = [Text(" · ".join(facts))]
    if fit.before_ns is not None:
        said = f"Before the fit, the process took {format_duration(fit.before_ns)} for imports, data and the Trainer."
        lines.append(Text(said))
    if fit.end in ENDS:
        lines.append(Text(ENDS[fit.end], style="dim"))
    return Group(grid, *lines)


def _calls(group: FitGroup) -> str:
    return _count(group.parts[0]) if len(group.parts) == 1 else ""


def _count(part: FitPart) -> str:
    return f"{part.count:,}" if part.count else ""
