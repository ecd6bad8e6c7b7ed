"""The ``lightning-perf`` command. Each subcommand is a module with `HELP`, `add_arguments` and `run`."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from lightning_perf import __version__
from lightning_perf.arguments import CommandParser, print_error
from lightning_perf.commands import analyze, badge, comment, diff, explain_nan, schema, view
from lightning_perf.commands import run as launch
from lightning_perf.compare.commands import compare, gate, study
from lightning_perf.demo import command as demo
from lightning_perf.errors import UserError
from lightning_perf.estimates import command as estimates
from lightning_perf.exit_codes import ExitCode
from lightning_perf.findings import command as explain
from lightning_perf.history import command as history
from lightning_perf.inference import command as infer
from lightning_perf.loading import command as data
from lightning_perf.mcp_server import command as mcp
from lightning_perf.probe import command as probe
from lightning_perf.terminal_text import ASCII_FALLBACK, plain
from lightning_perf.top import command as top
from lightning_perf.tune import command as tune

__all__ = ["main"]


class _Command(Protocol):
    """A module with a command. It loads torch and other large packages only in `run`."""

    HELP: str
    """Its line in the list of commands."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Add its description and its options."""

    def run(self, options: argparse.Namespace, /) -> int:
        """Run it and return its exit code. It raises a `UserError` if the user can fix the cause."""


_COMMANDS: Mapping[str, _Command] = {
    "demo": demo,
    "run": launch,
    "top": top,
    "analyze": analyze,
    "diff": diff,
    "view": view,
    "probe": probe,
    "tune": tune,
    "data": data,
    "compare": compare,
    "study": study,
    "history": history,
    "gate": gate,
    "comment": comment,
    "badge": badge,
    "infer": infer,
    "explain": explain,
    "explain-nan": explain_nan,
    "estimates": estimates,
    "schema": schema,
    "mcp": mcp,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments after the program's name; those of the process when not given.

    Returns:
        An `ExitCode`.
    """
    if sys.stdout is None:  # some schedulers close it, and a command that only writes files still works
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ASCII_FALLBACK)  # a terminal without Unicode gets the nearest ASCII
    options = _parser().parse_args(arguments)
    code: int = ExitCode.SUCCESS
    try:
        code = options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _discard_output()  # the reader, such as head or less, has exited
    except OSError as error:
        if error.filename is None:
            _discard_output()  # writing to it failed, e.g. on a full disk
        print_error(str(error))
        return ExitCode.USAGE
    except UserError as error:
        print_error(plain(str(error)).plain)
        return ExitCode.USAGE
    return code


def _discard_output() -> None:
    """Point standard output at nothing. Otherwise Python reports the error again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="lightning-perf",
        usage="%(prog)s [-h] [-V] COMMAND ...",
        description=(
            "Find out where the step time of a PyTorch Lightning training goes, what to change, and whether the "
            "change helped.\n\n"
            "examples:\n"
            "  lightning-perf analyze lightning_logs/version_0/perf\n"
            "  lightning-perf compare runs/fp32 runs/amp --treatment precision"
        ),
        epilog="Run 'lightning-perf COMMAND --help' for the options and the exit codes of a command.",
    )
    parser.add_argument("-V", "--version", action="version", version=f"lightning-perf {__version__}")
    commands = parser.add_subparsers(
        dest="command",
        required=True,
        metavar="COMMAND",
        title="commands",
        prog="lightning-perf",
        parser_class=CommandParser,
    )
    for name, command in _COMMANDS.items():
        subparser = commands.add_parser(name, help=command.HELP)
        subparser.set_defaults(run=command.run)
        command.add_arguments(subparser)
    return parser
