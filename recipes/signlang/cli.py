"""The command line ``python -m recipes.signlang [COMMAND]``. Without a command it trains."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence

from lightning_perf import ExitCode
from lightning_perf.arguments import CommandParser
from lightning_perf.show.terminal_text import ASCII_FALLBACK
from recipes.signlang.commands import compare, infer, predict, train
from recipes.signlang.errors import RecipeError

_COMMANDS = {
    "train": train,
    "compare": compare,
    "infer": infer,
    "predict": predict,
}
"""Each module has ``HELP``, ``add_arguments(parser)`` and ``run(arguments)``. It loads torch only in ``run``."""

_DEFAULT = "train"
_PROGRAM = "python -m recipes.signlang"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments; None takes those of the process.

    Returns:
        An `ExitCode`. A mistake in the input is a message without a traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ASCII_FALLBACK)  # file names may hold characters that no encoding has
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or given[0] not in _COMMANDS:
        given.insert(0, _DEFAULT)
    arguments = _parser().parse_args(given)
    try:
        return int(arguments.run(arguments))
    except RecipeError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return ExitCode.USAGE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog=_PROGRAM)
    commands = parser.add_subparsers(dest="command", required=True, prog=_PROGRAM, parser_class=CommandParser)
    for name, command in _COMMANDS.items():
        subparser = commands.add_parser(name, help=command.HELP)
        command.add_arguments(subparser)
        others = ", ".join(other for other in _COMMANDS if other != name)
        more = f"Other commands: {others}. Each has its own --help."
        subparser.epilog = "\n\n".join(filter(None, (subparser.epilog, more)))
        subparser.set_defaults(run=command.run)
    return parser
