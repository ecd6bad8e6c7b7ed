"""What the commands share: types of options, options that take a number, progress lines and files of output.

A type is a function that `argparse` calls on a text. Its error says what it accepts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = [
    "add_count",
    "at_least",
    "input_shape",
    "plot_file",
    "positive",
    "print_progress",
    "share",
    "within",
    "write_output",
]

PLOTS = (".png", ".svg", ".pdf")


def at_least(lowest: int, at_most: int | None = None) -> Callable[[str], int]:
    """A whole number with a lower bound.

    Args:
        lowest: The least number that is taken.
        at_most: The greatest, or None without such a bound.

    Example:
        >>> at_least(1)("3")
        3
        >>> at_least(1)("0")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: 0 is below 1
    """

    def parse(text: str) -> int:
        number = _whole(text)
        if number < lowest:
            raise argparse.ArgumentTypeError(f"{number} is below {lowest}")
        if at_most is not None and number > at_most:
            raise argparse.ArgumentTypeError(f"{number} is above {at_most}")
        return number

    return parse


def within(lowest: float, highest: float) -> Callable[[str], float]:
    """A number between two bounds, which are taken too.

    Args:
        lowest: The least number.
        highest: The greatest.
    """

    def parse(text: str) -> float:
        number = _number(text)
        if not lowest <= number <= highest:
            raise argparse.ArgumentTypeError(f"{text} is not from {lowest:g} to {highest:g}")
        return number

    return parse


def positive(text: str) -> float:
    """A finite number above 0.

    Example:
        >>> positive("nan")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: nan is not a positive number
    """
    number = _number(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def share(text: str) -> float:
    """A number between 0 and 1, neither of them taken."""
    number = _number(text)
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return number


def input_shape(text: str) -> tuple[int, ...]:
    """The shape of one input, without the batch: numbers joined by commas or by ``x``.

    Example:
        >>> input_shape("3,224,224")
        (3, 224, 224)
        >>> input_shape("3,x")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: '3,x' is no shape: give whole numbers joined by commas, as 3,224,224
    """
    try:
        shape = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape: give whole numbers joined by commas, as 3,224,224")
    return shape


def plot_file(text: str) -> Path:
    """A file whose ending says how to draw; told before a long measurement, not after it.

    Example:
        >>> plot_file("a.txt")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: a.txt: plots are written as .png, .svg or .pdf
    """
    path = Path(text)
    if path.suffix.lower() not in PLOTS:
        raise argparse.ArgumentTypeError(f"{text}: plots are written as {', '.join(PLOTS[:-1])} or {PLOTS[-1]}")
    return path


def add_count(
    group: argparse._ActionsContainer,
    name: str,
    help: str,
    *,
    default: object = argparse.SUPPRESS,
    least: int = 1,
    metavar: str = "N",
) -> None:
    """Add an option that takes a whole number.

    Args:
        group: The parser or the group of options.
        name: The option, such as ``--epochs``.
        help: Its help text.
        default: Its default; an option without one is absent from the parsed arguments unless the user gives it.
        least: The smallest number that it accepts.
        metavar: The name of its value in the help.
    """
    group.add_argument(name, type=at_least(least), default=default, metavar=metavar, help=help)


def print_progress(line: str) -> None:
    """Print a line of progress to standard error at once; standard output is for the document."""
    print(f"lightning-perf: {line}", file=sys.stderr, flush=True)  # noqa: T201


def write_output(path: Path, text: str, error: type[Exception]) -> None:
    """Write a file that the user asked for; its folder is made when it does not exist.

    Args:
        path: The file.
        text: Its content.
        error: The exception to raise if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as cause:
        raise error(f"{path}: cannot be written ({cause.strerror}). Give another file.") from cause


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
