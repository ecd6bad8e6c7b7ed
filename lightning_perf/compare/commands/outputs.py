"""Where a comparison goes: the terminal, JSON, Markdown, a page, plots."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.render.console import print_comparison, print_unfair
from lightning_perf.compare.render.json import render_json
from lightning_perf.compare.render.markdown import render_markdown, render_refusal
from lightning_perf.compare.verdicts.comparison import Comparison
from lightning_perf.compare.verdicts.refusal import Unfair

__all__ = ["write_comparison", "write_page", "write_refusal", "write_text"]


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
        write_text(render_markdown(comparison), markdown)
    if plots is not None:
        from lightning_perf.compare.plots.save import save_plots

        print(f"Plots    {save_plots(comparison, plots)}", file=sys.stderr)  # noqa: T201
    if as_json:
        sys.stdout.write(render_json(comparison))
    else:
        print_comparison(comparison)


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
    print_unfair(refusal, notes)
    if markdown is not None:
        write_text(render_refusal(refusal, notes), markdown)
    if as_json:
        sys.stdout.write(render_json(refusal))


def write_page(document: Comparison | Unfair, title: str, path: Path) -> None:
    """Write the page, one file that opens offline.

    Args:
        document: The comparison or its refusal.
        title: The page's title.
        path: The file.

    Raises:
        PageError: It cannot be written.
    """
    from lightning_perf.page.html import write_html

    write_html(msgspec.json.encode(document), "study", title, path)


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
