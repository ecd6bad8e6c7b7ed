"""Show a document as the options say: the one place for ``--json``, ``--markdown``, ``--html`` and other files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from lightning_perf.arguments import progress_printer, write_output
from lightning_perf.errors import UserError


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
