"""The common command-line options of all benchmarks."""

from __future__ import annotations

import argparse
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
