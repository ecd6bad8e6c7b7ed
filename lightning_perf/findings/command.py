"""``lightning-perf explain``: print the page of a rule, or list the rules."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Mapping
from typing import IO

from lightning_perf.arguments import describe
from lightning_perf.exit_codes import ExitCode
from lightning_perf.findings.pages import read_mistake_symptoms, read_rule_page, read_symptoms
from lightning_perf.terminal_text import ASCII_FALLBACK

__all__ = ["HELP", "add_arguments", "run"]

HELP = "explain a finding: its symptom, its threshold, its fix, and how to verify it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the description and the options of the command."""
    describe(
        parser,
        "Print the page that explains a rule, or a mistake in mixed precision. Without an ID, list all of them.",
        usage="[RULE]",
        examples=("lightning-perf explain", "lightning-perf explain input-bound", "lightning-perf explain half-loss"),
        exit_codes={ExitCode.SUCCESS: "the page or the list was printed", ExitCode.USAGE: "there is no such rule"},
    )
    parser.add_argument("rule", nargs="?", metavar="RULE", help="ID as the report shows it, e.g. input-bound")


def run(options: argparse.Namespace) -> int:
    """Print the page of a rule, or the list of rules, and return the exit code."""
    if options.rule is None:
        sys.stdout.write(_list())
        return ExitCode.SUCCESS
    try:
        page = read_rule_page(options.rule)
    except KeyError:
        near = difflib.get_close_matches(options.rule, [*read_symptoms(), *read_mistake_symptoms()], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        sys.stderr.write(
            f"lightning-perf: unknown rule {options.rule.encode('ascii', ASCII_FALLBACK).decode()!r}.{hint} "
            f"The rules are:\n{_list()}"
        )
        return ExitCode.USAGE
    _print_markdown(page, sys.stdout)
    return ExitCode.SUCCESS


def _list() -> str:
    lines = _table(read_symptoms())
    mistakes = _table(read_mistake_symptoms())
    return "\n".join(
        [
            *lines,
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
