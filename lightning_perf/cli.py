"""The ``lightning-perf`` command. Each subcommand is a module with `HELP`, `add_arguments` and `run`."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Protocol

from lightning_perf import __version__
from lightning_perf.arguments import CommandParser, print_error
from lightning_perf.errors import ExitCode, UserError
from lightning_perf.lazy_imports import REPOSITORY_URL
from lightning_perf.show.terminal_text import ASCII_FALLBACK, safe


class _Command(Protocol):
    """A module with a command. It loads torch and other large packages only in `run`."""

    HELP: str
    """Its line in the list of commands."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Add its description and its options."""

    def run(self, options: argparse.Namespace, /) -> int:
        """Run it and return its exit code. It raises a `UserError` if the user can fix the cause."""


_GROUPS = {
    "look": ("demo", "run", "top", "analyze", "view", "explain"),
    "change": ("tune", "data"),
    "verify": ("diff", "compare", "study", "gate", "history"),
    "deploy": ("infer",),
    "share": ("mcp",),
}
"""The modules of `lightning_perf.commands`, by the stage of the work that they serve."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default that of the process, and return an `ExitCode`."""
    if sys.stdout is None:  # some schedulers close it, and a command that only writes files still works
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ASCII_FALLBACK)  # a terminal without Unicode gets the nearest ASCII
    words = sys.argv[1:] if arguments is None else arguments
    parser = _parser(words[0] if words else "")
    if not words:
        parser.print_help(sys.stderr)
        return ExitCode.USAGE
    options = parser.parse_args(words)
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
        print_error(safe(str(error)))
        return error.exit_code
    except Exception:  # Python would exit with 1, which means that a check failed
        traceback.print_exc()
        print_error(f"this is a bug of lightning_perf. Please report it with the lines above: {REPOSITORY_URL}/issues")
        return ExitCode.USAGE
    return code


def _discard_output() -> None:
    """Point standard output at nothing. Otherwise Python reports the error again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(first_word: str) -> argparse.ArgumentParser:
    """Return the parser. If the first word is a command, no other command is loaded."""
    names = [name for group in _GROUPS.values() for name in group]
    loaded = [first_word] if first_word in names else names
    commands = {name: _load(name) for name in loaded}
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
        epilog=f"{_list_commands(commands)}\n\n"
        "Run 'lightning-perf COMMAND --help' for the options, examples and exit codes of a command.",
    )
    parser.add_argument("-V", "--version", action="version", version=f"lightning-perf {__version__}")
    subparsers = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", help=argparse.SUPPRESS, parser_class=CommandParser
    )
    for name, command in commands.items():
        subparser = subparsers.add_parser(name, prog=f"lightning-perf {name}")
        subparser.set_defaults(run=command.run)
        command.add_arguments(subparser)
    return parser


def _load(name: str) -> _Command:
    command: _Command = importlib.import_module(f"lightning_perf.commands.{name}")
    return command


def _list_commands(commands: Mapping[str, _Command]) -> str:
    """Return the commands with their purposes, one group per paragraph."""
    width = max(len(name) for name in commands)
    groups = {title: [name for name in group if name in commands] for title, group in _GROUPS.items()}
    return "\n\n".join(
        "\n".join([f"{title}:", *(f"  {name:<{width}}  {commands[name].HELP}" for name in group)])
        for title, group in groups.items()
        if group
    )
