"""``lightning-perf explain``: print the page of a rule, or list the rules."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import IO

from lightning_perf.arguments import describe, print_json
from lightning_perf.exit_codes import ExitCode
from lightning_perf.findings.explanation import Explanation, UnknownRuleError, explain
from lightning_perf.terminal_text import ASCII_FALLBACK

__all__ = ["HELP", "add_arguments", "run"]

HELP = "explain a finding: its symptom, its threshold, its fix, and how to verify it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Print the page that explains a rule, or a mistake in mixed precision. Without an ID, list all of them.",
        usage="[OPTIONS] [RULE]",
        examples=("lightning-perf explain", "lightning-perf explain input-bound", "lightning-perf explain half-loss"),
        exit_codes={ExitCode.SUCCESS: "the page or the list was printed", ExitCode.USAGE: "there is no such rule"},
    )
    parser.add_argument("rule", nargs="?", metavar="RULE", help="ID as the report shows it, e.g. input-bound")
    parser.add_argument("--json", action="store_true", help="print the page or the list as JSON")


def run(options: argparse.Namespace) -> int:
    """Print the page of a rule, or the list of rules, and return the exit code."""
    try:
        explanation = explain(options.rule)
    except UnknownRuleError as error:
        sys.stderr.write(f"lightning-perf: {str(error).encode('ascii', ASCII_FALLBACK).decode()}\n{_list(explain())}")
        return ExitCode.USAGE
    if options.json:
        print_json(explanation)
    elif options.rule is None:
        sys.stdout.write(_list(explanation))
    else:
        _print_markdown(explanation.rules[0].text or "", sys.stdout)
    return ExitCode.SUCCESS


def _list(explanation: Explanation) -> str:
    findings, mistakes = (
        _table({rule.rule: rule.symptom for rule in explanation.rules if rule.kind == kind})
        for kind in ("finding", "mistake")
    )
    return "\n".join(
        [
            *findings,
            "",
            "Mistakes in mixed precision:",
            *mistakes,
            "",
            "lightning-perf explain RULE prints the page of a rule.",
            "",
        ]
    )


def _table(symptoms: Mapping[str, str]) -> list[str]:
    width = max(map(len, symptoms), default=0)
    return [f"{name:{width}}  {symptom}" for name, symptom in symptoms.items()]


def _print_markdown(text: str, stream: IO[str]) -> None:
    """Print Markdown: rendered on a terminal, unchanged anywhere else."""
    if not stream.isatty():
        stream.write(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console(file=stream).print(Markdown(text, hyperlinks=True))
