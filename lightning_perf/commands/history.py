"""``lightning-perf history``: keep the figures of runs over many commits, show their trend, and gate new runs by it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from lightning_perf.arguments import add_list, add_outputs, describe, positive, print_progress, share, show
from lightning_perf.commands.compare import show_result
from lightning_perf.errors import ExitCode

HELP = "show the trend over commits, and gate new runs by it"

EXIT_CODES = {
    ExitCode.SUCCESS: "the history was shown or extended; all gates passed",
    ExitCode.CHECK_FAILED: "a gate failed",
    ExitCode.UNFAIR: "refused: no series of the history has the settings of the new runs",
    ExitCode.INCONCLUSIVE: "a gate is inconclusive: the interval includes its limit",
    ExitCode.INVALID_RUNS: "no new run is valid",
}

DEFAULT_STORE = "perf-history"
DEFAULT_METRIC = "step_time"
DEFAULT_CONFIDENCE = 0.95

_OPTIONS = {
    "show": {"metric", "since", "allow", "confidence", "json", "markdown", "html", "plot"},
    "add": {"arm"},
    "baseline": set[str](),
    "gate": {"metric", "max_slowdown", "gate", "baseline", "arm", "allow", "confidence", "json", "markdown"},
}
"""The options that each verb takes, in addition to ``--store`` and ``--quiet``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Keep the figures of runs over many commits. The verb 'show' is the default. It prints a row per commit and "
        "machine, the trend, and where it changed. With 'add' you store the figures, settings and commits of runs. "
        "With 'baseline set' you name a commit. With 'gate' you judge new runs by the level of the history.",
        usage="[VERB ...] [OPTIONS]",
        examples=(
            "lightning-perf history add lightning_logs/version_7 --store perf-history",
            "lightning-perf history --metric throughput --plot trend.png",
            "lightning-perf history baseline set main",
            "lightning-perf history gate runs/new --max-slowdown 0.05",
        ),
        exit_codes=EXIT_CODES,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="VERB",
        help="'show', 'add RUN', 'baseline set NAME [COMMIT]' or 'gate RUN'. A RUN is a folder with runs, the folder "
        "of a study, or a ZIP archive of either. You can give several",
    )
    parser.add_argument(
        "--store",
        default=DEFAULT_STORE,
        metavar="STORE",
        help="where the history is: a folder, or an address such as s3://bucket/history (default: %(default)s)",
    )
    shown = parser.add_argument_group("show and gate")
    shown.add_argument("--metric", metavar="METRIC", help=f"metric of a comparison (default: {DEFAULT_METRIC})")
    add_list(shown, "--allow", metavar="FACT", help="facts that may differ within a series, e.g. host", default=None)
    shown.add_argument(
        "--confidence", type=share, metavar="SHARE", help=f"coverage of the intervals (default: {DEFAULT_CONFIDENCE})"
    )
    shown.add_argument("--since", metavar="TIME", help="only show: rows from this date or commit on, e.g. 2026-11-01")
    gates = parser.add_argument_group("add and gate")
    gates.add_argument("--arm", metavar="ARM", help="the arm of a study (default of add: all arms)")
    gates.add_argument(
        "--max-slowdown",
        type=positive,
        metavar="SHARE",
        help="only gate: largest slowdown of the metric, e.g. 0.05 for 5 %%",
    )
    add_list(
        gates,
        "--gate",
        metavar="GATE",
        help="only gate: a limit on the ratio to the history, or on the difference in accuracy, e.g. 'step_time<=1.05'",
        default=None,
    )
    gates.add_argument(
        "--baseline",
        metavar="NAME",
        help="only gate: compare with the level at this baseline or commit (default: the newest level)",
    )
    add_outputs(parser, plot="file")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    verb, *words = options.words or ["show"]
    if verb not in _OPTIONS:
        near = get_close_matches(verb, _OPTIONS, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        _fail(f'unknown verb "{verb}".{hint} Choose from {", ".join(_OPTIONS)}.')
    _check_options(verb, options)
    if verb == "show":
        if words:
            _fail(f'unexpected argument "{words[0]}". Name the history with --store.')
        return _show(options)
    if verb == "baseline":
        return _set_baseline(words, options)
    if not words:
        _fail(f"{verb} needs at least one RUN: a folder with runs, e.g. lightning_logs/version_0.")
    return _add(words, options) if verb == "add" else _gate(words, options)


def _fail(message: str) -> NoReturn:
    from lightning_perf.history.store import HistoryError

    raise HistoryError(f"history: {message} Run 'lightning-perf history --help' for all options.")


def _check_options(verb: str, options: argparse.Namespace) -> None:
    known = set().union(*_OPTIONS.values())
    for name in sorted(known - _OPTIONS[verb]):
        if getattr(options, name) not in (None, False):
            takers = ", ".join(other for other, names in _OPTIONS.items() if name in names)
            _fail(f"--{name.replace('_', '-')} is not an option of {verb}, only of: {takers}.")


def _show(options: argparse.Namespace) -> int:
    from lightning_perf.history.read import read_history

    history = read_history(
        options.store,
        metric=options.metric or DEFAULT_METRIC,
        since=options.since,
        allow=options.allow or (),
        confidence=options.confidence or DEFAULT_CONFIDENCE,
    )
    show(history, options, save_plots=history.save_plot)
    return ExitCode.SUCCESS


def _add(words: Sequence[str], options: argparse.Namespace) -> int:
    from lightning_perf.history.store import add_runs

    added = add_runs(options.store, words, arms=() if options.arm is None else (options.arm,))
    if not options.quiet:
        parts = [f"added {added.added} run{'' if added.added == 1 else 's'} to {added.store}"]
        if added.known:
            parts.append(f"{added.known} {'was' if added.known == 1 else 'were'} already there")
        if added.left_out:
            reasons = ", ".join(f"{count} {why}" for why, count in added.left_out.items())
            parts.append(f"not counted: {reasons}")
        print_progress("; ".join(parts))
    return ExitCode.SUCCESS


def _set_baseline(words: Sequence[str], options: argparse.Namespace) -> int:
    from lightning_perf.history.read import set_baseline

    if not words or words[0] != "set" or not 2 <= len(words) <= 3:
        _fail("write: baseline set NAME [COMMIT], e.g. baseline set main.")
    baseline = set_baseline(options.store, words[1], words[2] if len(words) == 3 else None)
    if not options.quiet:
        print_progress(f"baseline {baseline.name} is now {baseline.commit}")
    return ExitCode.SUCCESS


def _gate(words: Sequence[str], options: argparse.Namespace) -> int:
    from lightning_perf.compare.verdicts.comparison import or_refusal
    from lightning_perf.compare.verdicts.gates import GateOutcome, parse_gate
    from lightning_perf.history.gate import HistoryGate, gate_runs, slowdown_gate

    gates = [parse_gate(text) for text in options.gate or ()]
    if options.max_slowdown is not None:
        gates.append(slowdown_gate(options.metric or DEFAULT_METRIC, options.max_slowdown))
    elif options.metric is not None:
        _fail("--metric of gate needs --max-slowdown, e.g. --max-slowdown 0.05.")
    if not gates:
        _fail("gate needs a limit. Add --max-slowdown 0.05, or --gate 'step_time<=1.05'.")
    outcome = or_refusal(
        lambda: gate_runs(
            options.store,
            words,
            gates,
            baseline=options.baseline,
            arm=options.arm,
            allow=options.allow or (),
            confidence=options.confidence or DEFAULT_CONFIDENCE,
        )
    )
    if not isinstance(outcome, HistoryGate):
        return show_result(outcome, options)
    show(outcome, options)
    codes = {GateOutcome.FAILED: ExitCode.CHECK_FAILED, GateOutcome.INCONCLUSIVE: ExitCode.INCONCLUSIVE}
    return codes.get(outcome.outcome, ExitCode.SUCCESS)
