"""A tuning result on the console and as Markdown."""

from __future__ import annotations

from typing import IO

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from lightning_perf.statistics.values import Estimate
from lightning_perf.tables import Table, escape, markdown_table
from lightning_perf.terminal_text import plain
from lightning_perf.tune.measurement import is_gain, is_loss, noise_share
from lightning_perf.tune.result import Outcome, Trial, TuneResult

__all__ = [
    "describe_ratio",
    "footnotes",
    "not_applicable",
    "print_result",
    "reasons",
    "render_markdown",
    "trial_table",
    "verdict",
]


NONE = "–"


def verdict(result: TuneResult) -> str:
    """Return the outcome in a sentence or two."""
    if not result.kept:
        tried = any(trial.measured is not None for trial in result.trials)
        if not tried:
            return "No lever could be measured on this training. The reasons are below."
        return "No lever makes this training certainly faster: leave it unchanged."
    names = ", ".join(result.kept)
    ratio = result.combined
    if ratio is None or ratio.value is None:
        return f"Kept: {names}. They were not measured all together in fresh processes."
    change = f"{_change(ratio)} time per step, {1 / ratio.value:.3g} times as fast"
    if not result.confirmed:
        return f"Kept: {names}. All together, in fresh processes, the gain is not certain: {change}."
    return f"Kept: {names}. All together, in fresh processes: {change}."


def trial_table(result: TuneResult) -> Table:
    """Return the table of the levers that apply."""
    rows = [
        (trial.lever, _predicted(trial), _change(trial.measured), trial.outcome.value)
        for trial in result.trials
        if trial.outcome is not Outcome.NOT_APPLICABLE
    ]
    return Table("Levers", ("lever", "predicted", "measured", "outcome"), tuple(rows))


def reasons(result: TuneResult) -> tuple[tuple[str, str], ...]:
    """Return why levers were not kept, if the measurement alone does not say it."""
    wanted = set(Outcome) - {Outcome.KEPT, Outcome.NO_GAIN, Outcome.NOT_APPLICABLE}
    found: dict[str, list[str]] = {}
    for trial in result.trials:
        if trial.outcome in wanted and trial.reason:
            found.setdefault(trial.reason, []).append(trial.lever)
        elif trial.outcome is Outcome.MEASURED and trial.measured is not None:
            certain = is_gain(trial.measured, result.noise) or is_loss(trial.measured, result.noise)
            doubt = "" if certain else "within the noise of the training; "
            lines = "; ".join(trial.lines)
            found.setdefault(f"{doubt}another training, for you to choose: {lines}", []).append(trial.lever)
    return tuple((", ".join(levers), reason) for reason, levers in found.items())


def not_applicable(result: TuneResult) -> tuple[tuple[str, str], ...]:
    """Return the levers that do not apply to this training or machine, by their reason."""
    found: dict[str, list[str]] = {}
    for trial in result.trials:
        if trial.outcome is Outcome.NOT_APPLICABLE:
            found.setdefault(trial.reason or "", []).append(trial.lever)
    return tuple((", ".join(levers), reason) for reason, levers in found.items())


def footnotes(result: TuneResult) -> tuple[str, ...]:
    """Return notes on the origin of the figures."""
    return (
        f"Step time of the unchanged training: {result.baseline_ms:.3g} ms, on {result.machine.name}.",
        _noise(result.noise),
        (
            "The measured change is that of the time per step (for batch sizes: per sample) against the best setting "
            f"before, with its 95 % interval. Each side had {result.rounds} windows of {result.window_steps} steps."
        ),
        (
            "A lever is kept if three pairs of processes agree. If no lever gained anything, the chance to keep any of "
            f"them would be at most {result.family_error:.0%}."
        ),
        f"Took {result.seconds / 60:.1f} of {result.budget_s / 60:g} minutes.",
        *result.notes,
    )


def describe_ratio(ratio: Estimate, *, interval: bool = True) -> str:
    """Return a ratio of times as a change, for lines of progress.

    Args:
        ratio: The ratio.
        interval: Whether to add its interval.
    """
    if ratio.value is None:
        return "not measured"
    return f"{_change(ratio)} time" if interval else f"{_percent(ratio.value)} %"


def _noise(noise: Estimate) -> str:
    """Return the difference of the training from itself, and its meaning for all other figures."""
    reach = 1 + noise_share(noise)
    text = (
        f"The training against itself: {_change(noise)}. A change from {_percent(1 / reach)} to {_percent(reach)} % "
        "counts as none."
    )
    if noise.low is not None and noise.high is not None and not noise.low <= 1 <= noise.high:
        text += (
            " Its own interval does not contain 0: processes of one training differ by more than the intervals show."
        )
    return text


def _predicted(trial: Trial) -> str:
    if trial.predicted is None:
        return NONE
    mark = " (probed)" if trial.source == "probed" else ""
    return " to ".join(f"{100 * (ratio - 1):+.0f}" for ratio in sorted(trial.predicted)) + f" %{mark}"


def _change(ratio: Estimate | None) -> str:
    if ratio is None or ratio.value is None:
        return NONE
    change = f"{_percent(ratio.value)} %"
    if ratio.low is None or ratio.high is None:
        return change
    return f"{change} ({_percent(ratio.low)} to {_percent(ratio.high)})"


def _percent(ratio: float) -> str:
    percent = 100 * (ratio - 1)
    return f"{percent:+.0f}" if abs(percent) >= 100 else f"{percent:+.1f}"


def render_markdown(result: TuneResult) -> str:
    """Return the result of a tuning as Markdown; see `TuneResult.to_markdown`."""
    parts = [f"**{escape(verdict(result))}**"]
    if result.lines:
        parts.append("```py\n" + "\n".join(line.replace("```", "'''") for line in result.lines) + "\n```")
    parts.append(markdown_table(trial_table(result)))
    for title, groups in (("Why", reasons(result)), ("Does not apply", not_applicable(result))):
        if groups:
            parts.append(f"{title}:")
            parts.append("\n".join(f"- {escape(names)}: {escape(reason)}" for names, reason in groups))
    parts.append("\n".join(f"- {escape(note)}" for note in footnotes(result)))
    return "\n\n".join(part for part in parts if part) + "\n"


def print_result(result: TuneResult, *, file: IO[str] | None, width: int | None) -> None:
    """Print the result of a tuning; see `TuneResult.print`."""
    out = Console(file=file, width=width, highlight=False)
    out.print(plain(verdict(result), style="bold"))
    if result.lines:
        out.print(Text("\nChange", style="bold"))
        for line in result.lines:
            out.print(plain(f"  {line}"), soft_wrap=True)
    table = trial_table(result)
    if table.rows:
        out.print()
        out.print(_table(table.columns, table.rows))
    for title, groups in (("Why", reasons(result)), ("Does not apply", not_applicable(result))):
        if groups:
            out.print(Text(title, style="bold"))
            for names, reason in groups:
                out.print(Padding(plain(f"{names}: {reason}"), (0, 0, 0, 2)))
    for note in footnotes(result):
        out.print(plain(note, style="dim"))


def _table(columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> Grid:
    table = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number in (1, 2) else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(plain, row))
    return table
