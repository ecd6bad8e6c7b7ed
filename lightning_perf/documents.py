"""The common parts of all documents: JSON and its schema, a page that opens offline, and reading one back.

A document is a frozen struct of plain values, complete in itself: reading one needs neither torch nor the files that
it was made from. It computes nothing, and gives its content as blocks. The formats in `lightning_perf.show` write them.
They load on first use, so that importing a document stays cheap.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec
from msgspec import Struct

from lightning_perf.run_files.atomic import write_named_file
from lightning_perf.saved_json import decode_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_perf.page.html import Kind
    from lightning_perf.show.blocks import Block, Parts


TOP = 8
"""Rows of a long table, unless you ask for more."""

_Saved = TypeVar("_Saved", bound="SavedDocument")


class Document(Struct, frozen=True):
    """A result that can be shown as JSON."""

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the whole document as JSON.

        Args:
            indent: Spaces per level, with a final newline; None for a single line without one.
        """
        data = msgspec.json.encode(self)
        return data.decode() if indent is None else msgspec.json.format(data, indent=indent).decode() + "\n"


class TextDocument(Document, frozen=True):
    """A document that the console and Markdown show without further options."""

    def blocks(self) -> Iterable[Block]:
        """Return the outcome, then the tables."""
        raise NotImplementedError

    def print(self, *, file: IO[str] | None = None, width: int | None = None) -> None:
        """Print the document: in colour on a terminal, as plain text anywhere else.

        Args:
            file: The stream to print to; standard output by default.
            width: Columns; those of the terminal by default.
        """
        from lightning_perf.show.console import print_blocks

        print_blocks(self.blocks(), file=file, width=width)

    def to_markdown(self) -> str:
        """Return the document as GitHub-flavoured Markdown, e.g. for a pull request or a results page."""
        from lightning_perf.show.markup import to_markdown

        return to_markdown(self.blocks())


class LongDocument(Document, frozen=True):
    """A document with tables of any length. The console and Markdown show their first rows."""

    def blocks(self, top: int = TOP) -> Iterable[Block]:
        """Return the outcome, then the tables.

        Args:
            top: Rows of each long table.
        """
        raise NotImplementedError

    def print(self, *, file: IO[str] | None = None, top: int = TOP, width: int | None = None) -> None:
        """Print the document: in colour on a terminal, as plain text anywhere else.

        Args:
            file: The stream to print to; standard output by default.
            top: Rows of each long table, e.g. of operators.
            width: Columns; those of the terminal by default.
        """
        from lightning_perf.show.console import print_blocks

        print_blocks(self.blocks(top), file=file, width=width)

    def to_markdown(self, *, top: int = TOP) -> str:
        """Return the document as GitHub-flavoured Markdown, e.g. for a pull request.

        Args:
            top: Rows of each long table, e.g. of operators.
        """
        from lightning_perf.show.markup import to_markdown

        return to_markdown(self.blocks(top))


class PageDocument(Document, frozen=True):
    """A document that has a page."""

    def write_html(self, path: str | os.PathLike[str], *, title: str | None = None) -> None:
        """Write the document as a page: one file that opens offline.

        Args:
            path: The file.
            title: Title of the page; derived from the document by default.

        Raises:
            PageError: The file cannot be written.
        """
        from lightning_perf.page.html import write_html

        kind, name = self._page()
        write_html(page_json(self), kind, name if title is None else title, Path(path))

    def _parts(self) -> Parts:
        """Return the blocks of each part of the page, which its views place next to their charts."""
        return {}

    def _page(self) -> tuple[Kind, str]:
        """Return the kind of the page and its title."""
        raise NotImplementedError

    def _page_data(self) -> bytes:
        """Return the JSON that the views of the page read, apart from its parts."""
        return msgspec.json.encode(self)


def page_json(document: PageDocument) -> bytes:
    """Return a document as JSON for its page, with the blocks of the page."""
    parts = {name: blocks for name, items in document._parts().items() if (blocks := tuple(items))}
    data = document._page_data()[1:-1]
    return b'{"parts":' + msgspec.json.encode(parts) + (b"," + data if data else b"") + b"}"


class Format(Struct, frozen=True):
    """The names and the version of a kind of document.

    Attributes:
        name: Its name, for an error about a file that is not one.
        short_name: Its name in all other errors.
        version: The schema version that this lightning_perf writes and reads.
        remedy: The action that makes a document of this version from one of an older version.
        error: The exception for a file that cannot be read as such a document.
    """

    name: str
    short_name: str
    version: int
    remedy: str
    error: type[Exception]


class SavedDocument(Document, frozen=True):
    """A document that can be read back from its JSON."""

    if TYPE_CHECKING:  # each document sets its own. At runtime the type hints are those of the document's fields only
        _format: ClassVar[Format]

    @classmethod
    def from_json(cls: type[_Saved], data: bytes | str) -> _Saved:
        """Decode the output of `to_json`, and check the type of every field.

        Args:
            data: JSON.

        Raises:
            Exception: The data is damaged, not such a document, or of another schema version. It is a `ReportError`,
                `CompareError`, `InferenceError` or `TuneError`, depending on the document.
        """
        form = cls._format
        try:
            version = decode_json(data, _Head).schema_version
        except msgspec.DecodeError as error:
            raise form.error(f"this is not a {form.name} ({error})") from error
        if version != form.version:
            action = "upgrade lightning-perf" if version > form.version else form.remedy
            wanted = f"this lightning-perf reads {form.version}"
            raise form.error(f"the {form.short_name} has schema version {version}, {wanted}: {action}")
        try:
            document: _Saved = decode_json(data, cls)
        except msgspec.DecodeError as error:
            raise form.error(f"the {form.short_name} is damaged ({error})") from error
        return document

    @classmethod
    def load(cls: type[_Saved], path: str | os.PathLike[str]) -> _Saved:
        """Read a document from a JSON file.

        Args:
            path: The file.

        Raises:
            OSError: The file cannot be read.
            Exception: The same as for `from_json`.
        """
        try:
            return cls.from_json(Path(path).read_bytes())
        except cls._format.error as error:
            raise type(error)(f"{os.fspath(path)}: {error}") from error


class PlottedDocument(SavedDocument, frozen=True):
    """A document with a picture."""

    def save_plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the document into a file.

        Args:
            path: The file; its suffix names the format: ``.png``, ``.svg`` or ``.pdf``.

        Raises:
            MissingExtraError: matplotlib is not installed.
            Exception: There is nothing to draw, or the file cannot be written. The type is that of `from_json`.
        """
        from lightning_perf.show.plots import image

        path, figure = Path(path), self._picture()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_named_file(path, image(figure, path.suffix.lstrip(".").lower()))
        except (OSError, ValueError) as error:
            problem = f"{path} cannot be written ({error}). Give a .png, .svg or .pdf file."
            raise self._format.error(problem) from error

    def _picture(self) -> Figure:
        raise NotImplementedError


class _Head(msgspec.Struct):
    schema_version: int


_COMPARISON = (
    "lightning_perf.compare.verdicts.comparison:Comparison",
    "lightning_perf.compare.verdicts.comparison:Unfair",
    "lightning_perf.compare.verdicts.comparison:InvalidRuns",
)

DOCUMENTS: Mapping[str, tuple[str, ...]] = {
    "analyze": ("lightning_perf.report.document:PerfReport", "lightning_perf.memory_snapshot.document:MemoryReport"),
    "diff": ("lightning_perf.report.compared:Compared", "lightning_perf.memory_snapshot.compared:MemoryDiff"),
    "tune": ("lightning_perf.tune.result:TuneResult", "lightning_perf.tune.scaling:ScalingResult"),
    "data": ("lightning_perf.loading.result:LoadingReport",),
    "compare": _COMPARISON,
    "study": _COMPARISON,
    "gate": _COMPARISON,
    "history": (
        "lightning_perf.history.document:History",
        "lightning_perf.history.gate:HistoryGate",
        "lightning_perf.compare.verdicts.comparison:Unfair",
        "lightning_perf.compare.verdicts.comparison:InvalidRuns",
    ),
    "infer": ("lightning_perf.inference.results.tradeoff:Tradeoff", "lightning_perf.inference.results.tradeoff:Sweep"),
    "explain": (
        "lightning_perf.findings.pages:Explanation",
        "lightning_perf.report.document:NanDiagnosis",
        "lightning_perf.estimates.calibration:Calibration",
    ),
}
"""The documents that each command can print with ``--json``."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ATTRIBUTE = re.compile(r"^ {8}(\w+): ", re.MULTILINE)


def schema_text(command: str) -> str:
    """Return the schema of a command's documents as indented JSON."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(make_schema(command)), indent=2).decode() + "\n"


def make_schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of a command's documents. The text on each field comes from the docstring of its class."""
    import msgspec

    types = []
    for place in DOCUMENTS[command]:
        module, _, name = place.partition(":")
        types.append(getattr(importlib.import_module(module), name))
    roots, definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    for definition in definitions.values():
        _move_descriptions(definition)
    root = roots[0] if len(roots) == 1 else {"anyOf": list(roots)}
    return {"$schema": _DIALECT, "title": f"lightning-perf {command} --json", **root, "$defs": definitions}


def _move_descriptions(definition: dict[str, Any]) -> None:
    """Move the section *Attributes* of a class's docstring to the properties of its schema."""
    text, _, attributes = definition.get("description", "").partition("    Attributes:\n")
    if text:
        definition["description"] = " ".join(text.partition("    Example:")[0].split())
    _, *found = _ATTRIBUTE.split(attributes.partition("\n    Example:")[0])
    for name, meaning in zip(found[::2], found[1::2], strict=True):
        if name in definition.get("properties", {}):
            definition["properties"][name]["description"] = " ".join(meaning.split())
