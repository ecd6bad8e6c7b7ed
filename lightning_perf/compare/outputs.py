"""Where a comparison goes: the terminal, JSON, Markdown, plots."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from lightning_perf.compare.comparison import Comparison
from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.refusal import Unfair

__all__ = ["write_comparison", "write_refusal", "write_text"]


def write_comparison(
    comparison: Comparison, *, as_json: bool = False, markdown: Path | None = None, plots: Path | None = None
) -> None:
    """Show a comparison on standard output and write the files that were asked for.

    Args:
        comparison: The document.
        as_json: Whether it is shown as JSON.
        markdown: A file for it, or None.
        plots: A folder for plots, or None.

    Raises:
        CompareError: A file cannot be written.
        MissingExtraError: Plots are wanted and matplotlib is not installed.
        BrokenPipeError: The reader of standard output has left.
    """
    if markdown is not None:
        write_text(comparison.to_markdown(), markdown)
    if plots is not None:
        print(f"Plots    {comparison.save_plots(plots)}", file=sys.stderr)  # noqa: T201
    if as_json:
        sys.stdout.write(comparison.to_json())
    else:
        comparison.print()


def write_refusal(
    refusal: Unfair, notes: Sequence[str] = (), *, as_json: bool = False, markdown: Path | None = None
) -> None:
    """Say on standard error why a comparison is refused, and write the files that were asked for.

    Args:
        refusal: The document.
        notes: What else is known of the runs.
        as_json: Whether the document goes to standard output.
        markdown: A file for it, or None.

    Raises:
        CompareError: A file cannot be written.
        BrokenPipeError: The reader has left.
    """
    refusal.print(notes)
    if markdown is not None:
        write_text(refusal.to_markdown(notes), markdown)
    if as_json:
        sys.stdout.write(refusal.to_json())


def write_text(text: str, path: Path) -> None:
    """Write a file, and the folders that it is in.

    Raises:
        CompareError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CompareError(f"{path}: cannot be written ({error.strerror}). Give another file.") from error
