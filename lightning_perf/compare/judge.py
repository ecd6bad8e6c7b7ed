"""Judge arms for a command: a document in any case, and the exit code that gives its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_perf.arguments import print_error
from lightning_perf.errors import ExitCode, UserError

if TYPE_CHECKING:
    from lightning_perf.compare.records.record import RunRecord
    from lightning_perf.compare.verdicts.comparison import Comparison, InvalidRuns, Unfair
    from lightning_perf.compare.verdicts.gates import Settings

EXIT_CODES = {
    ExitCode.SUCCESS: "all gates passed; without gates, every verdict",
    ExitCode.CHECK_FAILED: "a gate failed, or a candidate diverged or did not finish",
    ExitCode.UNFAIR: "refused: the runs differ in more than the tested setting",
    ExitCode.INCONCLUSIVE: "a gate is inconclusive: the interval includes its limit",
    ExitCode.INVALID_RUNS: "an arm has no valid run",
}
"""The meanings of the exit codes of ``compare`` and ``study``."""


def judge_arms(
    arms: Path | Mapping[str, Sequence[RunRecord]], settings: Settings, *, store: bool = True
) -> Comparison | Unfair | InvalidRuns:
    """Compare the arms of a study, or runs by arm, the baseline first; return a refusal as a document too."""
    from lightning_perf.compare.folders import compare_runs, store_estimates
    from lightning_perf.compare.verdicts.comparison import Comparison, or_refusal

    result = or_refusal(lambda: compare_runs(arms, settings))
    if store and isinstance(result, Comparison):
        store_estimates(result, arms)
    return result


def report_errors(action: Callable[[], int]) -> int:
    """Run a command, and print an error that the user can fix as one line on standard error.

    Args:
        action: The command. It returns its exit code.

    Returns:
        That exit code, or the one of the error.
    """
    from lightning_perf.show.terminal_text import safe

    try:
        return action()
    except UserError as error:
        print_error(safe(str(error)))
        return error.exit_code


def exit_code(comparison: Comparison | Unfair) -> int:
    """Return the exit code of a comparison.

    Gates decide it. Without gates every verdict is a success, also *slower* and *inconclusive*. A candidate that
    diverged or did not finish fails with or without gates.

    Args:
        comparison: The comparison, or the document of a refused one.

    Returns:
        ``SUCCESS``, ``CHECK_FAILED`` or ``INCONCLUSIVE``; ``UNFAIR`` for a refused comparison.
    """
    from lightning_perf.compare.verdicts.comparison import Unfair, VerdictKind
    from lightning_perf.compare.verdicts.gates import GateOutcome

    if isinstance(comparison, Unfair):
        return ExitCode.UNFAIR
    outcomes = {gate.outcome for gate in comparison.gates}
    kinds = {candidate.verdict.kind for candidate in comparison.candidates}
    if GateOutcome.FAILED in outcomes or kinds & {VerdictKind.DIVERGED, VerdictKind.UNFINISHED}:
        return ExitCode.CHECK_FAILED
    return ExitCode.INCONCLUSIVE if GateOutcome.INCONCLUSIVE in outcomes else ExitCode.SUCCESS
