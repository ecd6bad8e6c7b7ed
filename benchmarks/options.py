"""The common command-line options and pages of all benchmarks."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
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
