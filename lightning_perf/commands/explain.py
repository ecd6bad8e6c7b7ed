"""``lightning-perf explain``: the page of a rule, the cause of a NaN, or how often estimates came true."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from msgspec import Struct

from lightning_perf.arguments import Shown, add_list, add_outputs, describe, show
from lightning_perf.errors import ExitCode, LocatedError
from lightning_perf.findings.pages import Explanation, UnknownRuleError, explain

HELP = "explain a finding, a NaN, or how good the estimates were"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Print the page that explains a rule of the findings: its symptom, its threshold, its fix, and how to verify "
        "it. Without an argument, list all rules.\n\n"
        "For the folder of a run, print why its loss turned NaN or infinite in mixed precision: the first step and "
        "operator, the loss of the same batch in FP32, and the layers to keep in FP32. PerfCallback makes this "
        "diagnosis during the training.",
        usage="[OPTIONS] [RULE | RUN_FOLDER]",
        examples=(
            "lightning-perf explain input-bound",
            "lightning-perf explain half-loss",
            "lightning-perf explain lightning_logs/version_0/perf    # why NaN?",
            "lightning-perf explain --estimates lightning_logs,tunings",
        ),
        exit_codes={
            ExitCode.SUCCESS: "printed; also if the run saw no NaN",
            ExitCode.USAGE: "there is no such rule, or the folder has no precision.json",
        },
    )
    parser.add_argument(
        "subject",
        nargs="?",
        metavar="RULE",
        help="ID as the report shows it, e.g. input-bound; or the folder of a run with precision.json",
    )
    add_list(
        parser,
        "--estimates",
        metavar="FOLDER",
        kind=Path,
        help="show how often estimated savings came true, in all runs, tunings and studies below these folders. These "
        "store each estimate next to the measured gain: tune, diff, compare, study, and a second fit with PerfCallback",
    )
    add_outputs(parser, html=False)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    show(_read(options), options)
    return ExitCode.SUCCESS


def _read(options: argparse.Namespace) -> Shown:
    if options.estimates:
        from lightning_perf.estimates.calibration import read_calibration
        from lightning_perf.lazy_imports import import_extra

        if options.subject is not None:
            raise LocatedError("--estimates", f"does not go with '{options.subject}'", "Leave one of them out")
        import_extra("scipy", "compare")
        return read_calibration(options.estimates)
    try:
        return _Pages(explain(options.subject))
    except UnknownRuleError:
        folder = Path(options.subject)
        if folder.name == options.subject and not folder.is_dir():
            raise
    from lightning_perf.report.document import diagnose_nan

    return diagnose_nan(folder)


class _Pages(Struct, frozen=True):
    """An explanation as `show` needs it."""

    explanation: Explanation

    def to_json(self) -> str:
        """Return the page or the list as JSON."""
        import msgspec

        return msgspec.json.format(msgspec.json.encode(self.explanation), indent=2).decode() + "\n"

    def to_markdown(self) -> str:
        """Return the page as Markdown, or the list as a code block."""
        return self.explanation.rules[0].text or f"```text\n{_list(self.explanation)}```\n"

    def print(self) -> None:
        """Print the page: rendered on a terminal, as Markdown anywhere else."""
        page = self.explanation.rules[0].text
        if page is None or not sys.stdout.isatty():
            sys.stdout.write(page or _list(self.explanation))
            return
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(page, hyperlinks=True))


def _list(explanation: Explanation) -> str:
    width = max(len(rule.rule) for rule in explanation.rules)
    lines = [f"{rule.rule:{width}}  {rule.symptom}" for rule in explanation.rules]
    return "\n".join([*lines, "", "lightning-perf explain RULE prints the page of a rule.", ""])
