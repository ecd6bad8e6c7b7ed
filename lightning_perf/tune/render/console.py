"""A tuning on the console: the lines to change first."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightning_perf.compare.statistics.values import Estimate
from lightning_perf.report.console.safe import plain
from lightning_perf.tune.result import Trial, TuneResult

__all__ = ["print_result"]


def print_result(result: TuneResult, console: Console | None = None) -> None:
    """Print the verdict, the lines to change, and the table of trials.

    Args:
        result: The document.
        console: Where to; standard output when not given.
    """
    out = console or Console(highlight=False)
    out.print(Text(_verdict(result)))
    if result.lines:
        out.print(Text("\nChange", style="bold"))
        for line in result.lines:
            out.print(Text(f"  {line}"), soft_wrap=True)
    out.print()
    out.print(_table(result.trials))
    baseline = f"{result.baseline_ms:.3g} ms" if result.baseline_ms is not None else "unknown"
    out.print(
        Text(
            f"Step time as it was: {baseline} on {result.device}. Against itself: {_change(result.noise)}. "
            f"Took {result.seconds / 60:.1f} of {result.budget_s / 60:.1f} minutes. Measured is the change of the time "
            "a step against the best setting before, with its 95 % interval."
        )
    )
    for note in result.notes:
        out.print(Text("Note  ", style="bold").append(plain(note)))


def _verdict(result: TuneResult) -> str:
    if not result.kept:
        return "Nothing that was tried makes this training faster; leave it as it is."
    names = ", ".join(result.kept)
    if result.combined is None or result.combined.value is None:
        return f"Kept: {names}."
    speedup = f"{1 / result.combined.value:.3g} times as fast"
    return f"Kept: {names}. Together {_change(result.combined)} a step, {speedup}."


def _table(trials: tuple[Trial, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("lever", no_wrap=True)
    table.add_column("predicted", justify="right")
    table.add_column("measured", justify="right")
    table.add_column("outcome")
    for trial in trials:
        predicted = "–"
        if trial.predicted is not None:
            predicted = " to ".join(f"{100 * (ratio - 1):+.0f}" for ratio in sorted(trial.predicted)) + " %"
        outcome = plain(f"{trial.outcome.value}: {trial.reason}" if trial.reason else trial.outcome.value)
        table.add_row(trial.lever, predicted, _change(trial.measured), outcome)
    return table


def _change(ratio: Estimate | None) -> str:
    if ratio is None or ratio.value is None:
        return "–"
    change = f"{100 * (ratio.value - 1):+.1f} %"
    if ratio.low is None or ratio.high is None:
        return change
    return f"{change} ({100 * (ratio.low - 1):+.1f} to {100 * (ratio.high - 1):+.1f})"
