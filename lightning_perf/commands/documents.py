"""Show a report or a comparison as the options say, and write the files that you asked for."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from lightning_perf.arguments import write_output
from lightning_perf.page.html import PageError

if TYPE_CHECKING:
    from lightning_perf.memory_snapshot.compared import MemoryDiff
    from lightning_perf.memory_snapshot.document import MemoryReport
    from lightning_perf.report.compared import Compared
    from lightning_perf.report.document import PerfReport

__all__ = ["show_document"]


def show_document(
    document: PerfReport | Compared | MemoryReport | MemoryDiff, title: str, options: argparse.Namespace
) -> None:
    """Write the files, then print the document.

    Args:
        document: The report or the comparison.
        title: Title of its page.
        options: The options of `add_outputs`.

    Raises:
        PageError: A file cannot be written.
    """
    if options.html is not None:
        document.write_html(options.html, title=title)
    if options.markdown is not None:
        write_output(options.markdown, document.to_markdown(top=options.top), PageError)
    with suppress(BrokenPipeError):  # the reader has exited, and the exit code still has to give the outcome
        if options.json:
            sys.stdout.write(document.to_json())
        else:
            document.print(top=options.top)
