"""The command line: ``python -m recipes.signlang [COMMAND] …``; without a command it trains."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence

from lightning_perf.terminal_text import ASCII_FALLBACK
from recipes.signlang.commands import compare, infer, predict, train
from recipes.signlang.errors import RecipeError

__all__ = ["main"]

_COMMANDS = {
    "train": train,
    "compare": compare,
    "infer": infer,
    "predict": predict,
}
"""Each has ``HELP``, ``add_arguments(parser)`` and ``run(arguments) -> exit code``, and loads torch only in ``run``."""

_DEFAULT = "train"
_PROGRAM = "python -m recipes.signlang"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments; None takes the process's own.

    Returns:
        The exit code: 0, 2 for a mistake of the user's (with a message, without a traceback), 130 after Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ASCII_FALLBACK)  # names of files may hold what no encoding has
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or given[0] not in _COMMANDS:
        given.insert(0, _DEFAULT)
    arguments = _parser().parse_args(given)
    try:
        return int(arguments.run(arguments))
    except RecipeError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_PROGRAM)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, command in _COMMANDS.items():
        usage = f"{_PROGRAM} {f'[{name}]' if name == _DEFAULT else name} [options]"
        others = ", ".join(other for other in _COMMANDS if other != name)
        sub = commands.add_parser(
            name,
            help=command.HELP,
            description=command.HELP,
            usage=usage,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        command.add_arguments(sub)
        sub.epilog = " ".join(filter(None, (sub.epilog, f"Other commands: {others}; each has a --help of its own.")))
        sub.set_defaults(run=command.run)
    return parser
