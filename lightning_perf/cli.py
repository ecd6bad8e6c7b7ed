"""``lightning-perf analyze | diff | view | tune | compare | study | infer | sweep``: thin commands over the library."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from lightning_perf import __version__
from lightning_perf.arguments import at_least
from lightning_perf.compare.commands import compare, study
from lightning_perf.findings import command as explain
from lightning_perf.inference import command as infer
from lightning_perf.inference.sweep import command as sweep
from lightning_perf.terminal_text import ASCII_FALLBACK, plain
from lightning_perf.tune import command as tune

if TYPE_CHECKING:
    from lightning_perf.report.compared import Compared
    from lightning_perf.report.document import PerfReport

__all__ = ["main"]

SUCCESS = 0
USAGE_ERROR = 2
INTERRUPTED = 130

_EXIT_CODES = "Exit codes: 0 success; 2 wrong usage or bad input; 130 interrupted."

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class _Command(Protocol):
    """A module with a command. It loads torch and other large packages only in `run`."""

    HELP: str
    """Its line in the list of commands."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Add its description and its options."""

    def run(self, options: argparse.Namespace, /) -> int:
        """Run it and return its exit code. Its errors are those of `_is_expected`."""


_COMMANDS: Mapping[str, _Command] = {
    "tune": tune,
    "compare": compare,
    "study": study,
    "infer": infer,
    "sweep": sweep,
    "explain": explain,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments after the program's name; those of the process when not given.

    Returns:
        Exit code: 0 for success, 2 for bad input, 130 when interrupted; those of ``compare`` are in its help.
    """
    if sys.stdout is None:  # closed, as by some schedulers: what is asked for may be a file
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ASCII_FALLBACK)  # nearest ASCII where there is no Unicode
    options = _parser().parse_args(arguments)
    code = SUCCESS
    try:
        code = options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()  # the reader (head, less) has left
    except OSError as error:
        if error.filename is None:
            _discard_output()  # writing to it failed: a full disk
        print(f"lightning-perf: {error}", file=sys.stderr)  # noqa: T201
        return USAGE_ERROR
    except Exception as error:
        if not _is_expected(error):
            raise
        print(f"lightning-perf: {plain(str(error)).plain}", file=sys.stderr)  # noqa: T201
        return USAGE_ERROR
    return code


def _discard_output() -> None:
    """Let standard output end in nothing: Python would complain once more when it flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_expected(error: Exception) -> bool:
    from lightning_perf.compare.errors import CompareError
    from lightning_perf.errors import TraceError
    from lightning_perf.inference.errors import InferenceError
    from lightning_perf.lazy_imports import MissingExtraError
    from lightning_perf.page.html import PageError
    from lightning_perf.tune.errors import TuneError
    from lightning_perf.view import ViewerError

    expected = (CompareError, InferenceError, MissingExtraError, PageError, TraceError, TuneError, ViewerError)
    return isinstance(error, expected)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightning-perf",
        description="Where the step time of a training goes, what to change, and whether the change helped.",
        epilog=f"{_EXIT_CODES} Some commands have more: see their help.",
    )
    parser.add_argument("--version", action="version", version=f"lightning-perf {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_analyze(commands)
    _add_diff(commands)
    _add_view(commands)
    for name, command in _COMMANDS.items():
        command.add_arguments(_add_command(commands, name, command.run, command.HELP))
    return parser


def _add_command(
    commands: _Commands, name: str, run: Callable[[argparse.Namespace], int], help: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help, epilog=_EXIT_CODES)
    parser.set_defaults(run=run)
    return parser


def _add_analyze(commands: _Commands) -> None:
    parser = _add_command(commands, "analyze", _analyze, "report where the step time of a recording goes")
    parser.description = "Report where the step time goes, from any trace that torch.profiler exported."
    parser.add_argument("path", metavar="PATH", help="trace (.json, .json.gz), or the folder of one run")
    _add_outputs(parser, "report")
    parser.add_argument("--by-shape", action="store_true", help="tell operators apart by the shapes of their inputs")
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="where the recordings of many ranks are analysed: here, or on a Ray cluster (default: local)",
    )
    parser.add_argument(
        "--ray-address", metavar="ADDRESS", help="ray: the cluster (default: RAY_ADDRESS, or one of this machine)"
    )


def _add_diff(commands: _Commands) -> None:
    parser = _add_command(commands, "diff", _diff, "show what changed from one recording to another")
    parser.description = (
        "Show what got faster or slower from one recording to another: by category, operator and kernel. "
        "Whether it is more than noise, repeated runs tell: see compare."
    )
    parser.add_argument("before", metavar="A", help="trace or run folder before the change")
    parser.add_argument("after", metavar="B", help="trace or run folder after the change")
    _add_outputs(parser, "comparison")


def _add_outputs(parser: argparse.ArgumentParser, document: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"write the whole {document} as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write it as a page too, one file that opens offline")
    parser.add_argument("--top", type=at_least(1), default=8, metavar="N", help="rows of each table (default: 8)")


def _add_view(commands: _Commands) -> None:
    parser = _add_command(commands, "view", _view, "open a recording's timeline in Perfetto's UI")
    parser.description = "Serve a trace's timeline in Perfetto's own UI, on this machine and without internet."
    parser.add_argument("path", metavar="PATH", help="trace (.json, .json.gz), or the folder of one run")
    parser.add_argument(
        "--port", type=at_least(0, 65535), default=0, metavar="N", help="port to listen on (default: a free one)"
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def _analyze(options: argparse.Namespace) -> int:
    from lightning_perf.report.build import analyze
    from lightning_perf.report.recordings import RecordingExecutor, analyze_recordings

    executor: RecordingExecutor = analyze_recordings
    if options.engine == "ray":
        from lightning_perf.compare.engines.ray_cluster import RayRecordings

        executor = RayRecordings(options.ray_address)
    report = analyze(options.path, by_shape=options.by_shape, executor=executor)
    return _show(report, Path(options.path).resolve().name, options)


def _diff(options: argparse.Namespace) -> int:
    from lightning_perf.report.build import analyze

    compared = analyze(options.before).diff(analyze(options.after))
    title = f"{Path(options.before).resolve().name} and {Path(options.after).resolve().name}"
    return _show(compared, title, options)


def _show(document: PerfReport | Compared, title: str, options: argparse.Namespace) -> int:
    if options.html:
        document.write_html(options.html, title=title)
    if options.json:
        sys.stdout.write(document.to_json())
    else:
        document.print(top=options.top)
    return SUCCESS


def _view(options: argparse.Namespace) -> int:
    from lightning_perf.view import view

    def print_line(line: str) -> None:
        print(line, flush=True)  # noqa: T201

    view(options.path, port=options.port, browser=not options.no_browser, on_progress=print_line)
    return SUCCESS
