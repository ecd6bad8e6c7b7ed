"""The parts that all commands share: the parser, types of options, common options, progress lines and output files.

A type is a function that `argparse` calls with the text of an option. Its error says which values the option accepts.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, Protocol

from lightning_perf.errors import ExitCode, UserError
from lightning_perf.lazy_imports import MissingExtraError

PLOTS = (".png", ".svg", ".pdf")

_COMMON_CODES = {
    ExitCode.USAGE: "wrong usage, or a file cannot be read or written",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
}


class HelpFormatter(argparse.HelpFormatter):
    """Fill paragraphs to the width of the terminal, and keep indented lines such as examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = []
        for paragraph in text.split("\n\n"):
            lines = paragraph.splitlines()
            if any(line.startswith(" ") for line in lines):
                paragraphs.append("\n".join(indent + line for line in lines))
            else:
                paragraphs.append(super()._fill_text(paragraph, width, indent))
        return "\n\n".join(paragraphs)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Show the value once, as Python 3.13 and later do: ``-n, --top N``."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


class CommandParser(argparse.ArgumentParser):
    """A parser of one command.

    An option has one spelling: abbreviations are errors, so that a later option cannot change the meaning of a script.
    An error about an unknown option or value names the one that is most alike.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": HelpFormatter, "allow_abbrev": False, **options})
        self._positionals.title = "arguments"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments. An argument that the command does not have is an error here, next to its usage."""
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown))
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        """Print the usage, the error, and how to get help, then exit."""
        self.print_usage(sys.stderr)
        self.exit(ExitCode.USAGE, f"{self.prog}: error: {message}\nRun '{self.prog} --help' for all options.\n")

    def _unknown(self, arguments: Sequence[str]) -> str:
        first = next((argument for argument in arguments if argument.startswith("-")), arguments[0])
        name = first.partition("=")[0]
        message = f"{'unknown option' if name.startswith('-') else 'unexpected argument'} '{name}'"
        near = get_close_matches(name, self._option_string_actions, n=1) if name.startswith("--") else ()
        if near:
            message += f". Did you mean {near[0]}?"
        elif not name.startswith("-") and any(isinstance(action, _ListAction) for action in self._actions):
            message += ". Separate several values of an option with commas."
        return message

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        near = get_close_matches(str(value), choices, n=1) or [c for c in choices if c.startswith(f"{value}-")]
        hint = f" Did you mean {near[0]}?" if near else ""
        raise argparse.ArgumentError(action, f"unknown value {value!r}.{hint} Choose from {', '.join(choices)}.")


def describe(
    parser: argparse.ArgumentParser,
    sentence: str,
    *,
    usage: str,
    examples: Sequence[str] = (),
    exit_codes: Mapping[ExitCode, str] | None = None,
) -> None:
    """Set the text of a command's ``--help``."""
    parser.usage = f"%(prog)s {usage}"
    parts = [sentence]
    if examples:
        parts.append("\n".join(["examples:", *(f"  {line}" for line in examples)]))
    parser.description = "\n\n".join(parts)
    if exit_codes is not None:
        parser.epilog = exit_code_text(exit_codes)


def exit_code_text(meanings: Mapping[ExitCode, str]) -> str:
    """List exit codes for the end of a ``--help``.

    Example:
        >>> print(exit_code_text({ExitCode.SUCCESS: "done"}))
        exit codes:
          0    done
          2    wrong usage, or a file cannot be read or written
          130  interrupted by Ctrl-C
    """
    lines = ["exit codes:"]
    for code, meaning in sorted({**_COMMON_CODES, **meanings}.items()):
        first, *more = textwrap.wrap(meaning, 71)
        lines += [f"  {int(code):<5}{first}", *(f"       {line}" for line in more)]
    return "\n".join(lines)


def at_least(lowest: int, at_most: int | None = None) -> Callable[[str], int]:
    """Return a type for whole numbers from a lower bound."""
    wanted = f"a whole number of {lowest} or more" if at_most is None else f"a whole number from {lowest} to {at_most}"

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or number < lowest or (at_most is not None and number > at_most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
        return number

    return parse


def positive(text: str) -> float:
    """Parse a finite number above 0."""
    number = _number(text)
    if number is None or not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def share(text: str) -> float:
    """Parse a share: a number above 0 and below 1.

    Example:
        >>> share("5%")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: '5%' is not a share: give a number above 0 and below 1, e.g. 0.01 for 1 %
    """
    number = _number(text)
    if number is None or not 0 < number < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a share: give a number above 0 and below 1, e.g. 0.01 for 1 %"
        )
    return number


def share_or_zero(text: str) -> float:
    """Parse a share that may also be 0."""
    return 0.0 if _number(text) == 0 else share(text)


def thread_count(text: str) -> int:
    """Parse a number of CPU threads, or ``all`` for one per core that this process may use."""
    if text == "all":
        from lightning_perf.workers.limits import usable_cpus  # not needed for --help

        return usable_cpus()
    try:
        return at_least(1)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or 'all'") from None


def input_shape(text: str) -> tuple[int, ...]:
    """Parse the shape of one input, without the batch: numbers separated by commas or by ``x``."""
    try:
        shape = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape: give positive whole numbers, e.g. 3,224,224")
    return shape


def plot_file(text: str) -> Path:
    """Parse the path of a plot. A wrong suffix is an error before a long measurement, not after it.

    Example:
        >>> plot_file("a.txt")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: 'a.txt': plots are written as .png, .svg or .pdf
    """
    path = Path(text)
    if path.suffix.lower() not in PLOTS:
        raise argparse.ArgumentTypeError(f"{text!r}: plots are written as {', '.join(PLOTS[:-1])} or {PLOTS[-1]}")
    return path


def add_count(
    group: argparse._ActionsContainer,
    *flags: str,
    help: str,
    default: object = argparse.SUPPRESS,
    least: int = 1,
    metavar: str = "N",
) -> None:
    """Add an option that takes a whole number. Without a default, the parsed arguments lack it unless you give it."""
    group.add_argument(*flags, type=at_least(least), default=default, metavar=metavar, help=help)


class _ListAction(argparse.Action):
    """Collect the values of an option that may be given several times. The first one replaces the default."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:  # noqa: ARG002
        given = f"_given_{self.dest}"
        before = getattr(namespace, self.dest) if hasattr(namespace, given) else ()
        setattr(namespace, given, True)
        setattr(namespace, self.dest, (*before, *values))


def add_list(
    group: argparse._ActionsContainer,
    *flags: str,
    help: str,
    metavar: str,
    kind: Callable[[str], Any] = str,
    default: tuple[Any, ...] | str | None = (),
    if_empty: tuple[Any, ...] | None = None,
) -> None:
    """Add an option that takes values separated by commas and may be given several times.

    Args:
        default: Its default, which the first value replaces; `argparse.SUPPRESS` for none.
        if_empty: The values of the option without a value; None if it needs one.
    """
    count = None if if_empty is None else "?"

    def parse(text: str) -> tuple[Any, ...]:
        parts = [part.strip() for part in text.split(",")]
        if "" in parts:
            raise argparse.ArgumentTypeError(f"{text!r} has an empty value: separate values with one comma, e.g. a,b")
        return tuple(kind(part) for part in parts)

    names = f"{metavar},..."
    group.add_argument(
        *flags, action=_ListAction, type=parse, default=default, nargs=count, const=if_empty, metavar=names, help=help
    )


def add_printed_list(group: argparse._ActionsContainer, lines: Callable[[], Iterable[str]], *, things: str) -> None:
    """Add ``--list``, which prints the accepted names and exits. `lines` is called only then."""
    _add_printed(group, "--list", lambda _: "".join(f"{line}\n" for line in lines()), f"list {things} and exit")


def _add_printed(
    group: argparse._ActionsContainer, flag: str, text: Callable[[argparse.ArgumentParser], str], help: str
) -> None:
    """Add an option that prints a text and exits."""

    class PrintAndExit(argparse.Action):
        def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
            try:
                printed = text(parser)
            except MissingExtraError as error:
                parser.exit(ExitCode.USAGE, f"lightning-perf: {error}\n")
            sys.stdout.write(printed)
            parser.exit()

    group.add_argument(flag, action=PrintAndExit, nargs=0, help=help)


def _schema(parser: argparse.ArgumentParser) -> str:
    from lightning_perf.documents import schema_text  # msgspec takes as long to load as the rest of a help text

    return schema_text(parser.prog.rpartition(" ")[2])


def add_outputs(
    parser: argparse.ArgumentParser,
    *,
    html: bool = True,
    plot: str | None = None,
    out: str | None = None,
    top: int | None = None,
) -> argparse._ArgumentGroup:
    """Add the options for a command's results. They are the same on every command that has a document."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print the whole document as JSON instead of the tables")
    _add_printed(
        group,
        "--schema",
        _schema,
        "print the JSON Schema of --json and exit",
    )
    group.add_argument("--markdown", type=Path, metavar="FILE", help="also write the tables as Markdown")
    if html:
        group.add_argument("--html", type=Path, metavar="FILE", help="also write a page that opens offline")
    if plot == "file":
        group.add_argument("--plot", type=plot_file, metavar="FILE", help="also draw a plot: .png, .svg or .pdf")
    elif plot == "folder":
        group.add_argument(
            "--plot", type=Path, metavar="FOLDER", help="also draw all plots: PNG, SVG, and TensorBoard images"
        )
    if out is not None:
        group.add_argument("-o", "--out", type=Path, metavar="FOLDER", help=out)
    if top is not None:
        add_count(group, "-n", "--top", default=top, help="rows of each table (default: %(default)s)")
    group.add_argument("-q", "--quiet", action="store_true", help="print no progress, only results and errors")
    return group


def print_error(text: str) -> None:
    """Print an error to standard error."""
    print(f"lightning-perf: {text}", file=sys.stderr, flush=True)  # noqa: T201


def print_progress(line: str) -> None:
    """Print a line of progress to standard error at once. Standard output is for the document."""
    print(f"lightning-perf: {line}", file=sys.stderr, flush=True)  # noqa: T201


def progress_printer(quiet: bool) -> Callable[[str], None]:
    """Return the function for lines of progress: `print_progress`, or one that prints nothing."""
    return (lambda _: None) if quiet else print_progress


def write_output(path: Path, text: str) -> None:
    """Write a file that the user asked for, and make its folder."""
    from lightning_perf.run_files.atomic import write_named_file  # not needed for --help

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_named_file(path, text.encode())
    except OSError as cause:
        raise UserError(f"{path}: cannot be written ({cause.strerror}). Give another file.") from cause


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


class Shown(Protocol):
    """A document as this module uses it. With ``--html``, it also has `write_html`."""

    def print(self) -> None:
        """Print the document."""

    def to_markdown(self) -> str:
        """Return the document as Markdown."""

    def to_json(self) -> str:
        """Return the document as JSON."""


def show(
    document: Shown,
    options: argparse.Namespace,
    *,
    title: str | None = None,
    text: Mapping[str, Any] | None = None,
    save_plots: Callable[[Path], object] | None = None,
    kept_as: str | None = None,
) -> None:
    """Write the files that the options of `add_outputs` ask for, then print the document.

    The document is printed even if a file cannot be written, because a measurement may have taken hours.

    Args:
        text: Arguments of its `print` and `to_markdown`; by default the rows of ``--top``.
    """
    given, say = vars(options), progress_printer(options.quiet)
    text = text if text is not None else {"top": given["top"]} if "top" in given else {}

    def draw(save: Callable[[Path], object], path: Path) -> None:
        saved = save(path)
        say(f"plot: {path}" if saved is None else f"plots: {saved}")

    writers: dict[str, Callable[[Path], None]] = {
        "html": lambda path: document.write_html(path, title=title),  # type: ignore[attr-defined]
        "markdown": lambda path: write_output(path, document.to_markdown(**text)),
    }
    if save_plots is not None:
        writers["plot"] = lambda path: draw(save_plots, path)
    if kept_as is not None:
        writers["out"] = lambda path: write_output(path / kept_as, document.to_json())
    problems = list(_failures(writers, given))
    with suppress(BrokenPipeError):  # the reader has exited, and the exit code still has to give the outcome
        if options.json:
            sys.stdout.write(document.to_json())
        else:
            document.print(**text)
    if problems:
        raise UserError(" ".join(problems))


def _failures(writers: Mapping[str, Callable[[Path], None]], given: Mapping[str, Any]) -> Iterator[str]:
    """Write each file that was asked for, and yield the errors of those that cannot be written."""
    for name, write in writers.items():
        path = given.get(name)
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
        except UserError as error:
            yield str(error)
        except OSError as error:
            yield f"{path}: cannot be written ({error.strerror}). Give another file."
