"""The common command-line options and pages of all benchmarks."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path


def make_parser(description: str | None, results: Path | None = None) -> argparse.ArgumentParser:
    """Make the parser of a benchmark.

    Args:
        description: The docstring of its module.
        results: The file or folder that it writes, for the option ``--results``; None for no such option.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if results is not None:
        parser.add_argument("--results", type=Path, default=results, help="where to write (default: %(default)s)")
    return parser


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[object]], figures: int = 0) -> str:
    """Return a Markdown table.

    Args:
        figures: How many columns at the end are aligned to the right.
    """
    rules = ["---"] * (len(heads) - figures) + ["--:"] * figures
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (heads, rules, *rows))


def write_page(path: Path, text: str) -> None:
    """Print a page of results, and write it."""
    print(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_simulation(description: str | None, results: Path, head: str, report: Callable[[int], str]) -> None:
    """Read the options of a simulation, run it, and print and write its page.

    Args:
        head: The title of the page, and the command.
        report: Returns the tables as Markdown, from the number of simulated studies per cell.
    """
    parser = make_parser(description, results)
    parser.add_argument("--studies", type=int, default=4000, help="simulated studies per cell (default: %(default)s)")
    options = parser.parse_args()
    begin_s = time.process_time()
    tables = report(options.studies)
    error = 100 * (0.95 * 0.05 / options.studies) ** 0.5
    write_page(
        options.results,
        f"{head} {options.studies:,} simulated studies per cell (standard error {error:.2f} points at 95 %), seeded. "
        f"Python {platform.python_version()}, numpy {version('numpy')}, scipy {version('scipy')}; "
        f"{time.process_time() - begin_s:.0f} s of CPU time.\n\n{tables}",
    )
