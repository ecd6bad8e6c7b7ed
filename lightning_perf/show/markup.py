"""Blocks as markup in which no name has an effect: GitHub-flavoured Markdown, and HTML for notebooks."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator

from lightning_perf.show.blocks import (
    Block,
    Code,
    Context,
    Details,
    Heading,
    Line,
    Listing,
    Span,
    Style,
    Table,
    as_text,
)
from lightning_perf.show.terminal_text import safe

_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#~$&])")
_MENTION = re.compile(r"(?<=@)(?=\w)|(?<=GH-)(?=\d)|(?<![)\]}>]#)(?<=#)(?=\d)")
_ADDRESS = re.compile(r"(?=://)|(?<=www)(?=\.)", re.IGNORECASE)

_APART = "\u200b"
"""A space without width. A backslash would not help: GitHub looks for mentions, issues and addresses after it."""


def to_markdown(blocks: Iterable[Block]) -> str:
    """Return blocks as Markdown. Charts are left out."""
    return "\n\n".join(_parts(blocks)) + "\n"


def escape(text: str) -> str:
    """Escape text so that no markup in it has an effect, nobody is mentioned, and no issue is referred to."""
    return _MARKUP.sub(r"\\\1", _MENTION.sub(_APART, safe(text))).replace("\u00a0", " ")


def markdown_table(table: Table) -> str:
    """Return the rows of a table below their heads."""
    heads = (" ".join(column.head.split()) for column in table.columns)
    marks = ["---:" if column.has_figures else "---" for column in table.columns]
    rows = [_row(" ".join(safe(f"{cell.text}{cell.detail}").split()) for cell in row) for row in table.rows]
    return "\n".join([_row(heads), f"|{'|'.join(marks)}|", *rows])


def _parts(blocks: Iterable[Block]) -> Iterator[str]:
    for block in as_text(blocks):
        if isinstance(block, Heading):
            yield f"{'#' * block.level} {escape(block.line)}"
        elif isinstance(block, Line):
            if text := _line(block):
                yield f"**{text}**" if block.style == "strong" and not block.label else text
        elif isinstance(block, Listing):
            yield "\n".join(f"- {_line(line)}" for line in block.lines)
        elif isinstance(block, Table):
            yield from [f"### {escape(block.title)}"] if block.title else []
            yield markdown_table(block)
        elif isinstance(block, Code):
            yield f"```{block.language}\n" + "\n".join(line.replace("```", "'''") for line in block.lines) + "\n```"
        elif isinstance(block, Details):
            folded = list(_parts(block.blocks))
            yield from [f"<details><summary>{escape(block.summary)}</summary>", *folded, "</details>"] if folded else []
        elif isinstance(block, Context):
            yield from _parts(block.blocks)


def _line(line: Line) -> str:
    text = "".join(
        escape(span.text) if span.link is None else f"[{escape(span.text)}]({span.link})" for span in line.spans
    )
    return f"**{escape(line.label.strip())}** {text}" if line.label.strip() else text


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(_ADDRESS.sub(_APART, escape(cell)) for cell in cells)} |"


ELEMENTS: dict[Style, str] = {"strong": "b", "warning": "b", "bad": "b", "quiet": "small", "command": "code"}


def to_html(blocks: Iterable[Block]) -> str:
    """Return lines and tables as HTML. Names in them have no effect."""
    return f"<div>{''.join(_html_parts(blocks))}</div>"


def _html_parts(blocks: Iterable[Block]) -> Iterator[str]:
    for block in as_text(blocks):
        if isinstance(block, Line):
            yield f"<div>{_html_line(block)}</div>"
        elif isinstance(block, Table):
            heads = "".join(f"<th>{_escape(column.head)}</th>" for column in block.columns)
            rows = ("".join(f"<td>{_escape(f'{cell.text}{cell.detail}')}</td>" for cell in row) for row in block.rows)
            yield f"<table><tr>{heads}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _html_line(line: Line) -> str:
    text = "".join(map(_span, line.spans))
    return f"<b>{_escape(line.label.strip())}</b> {text}" if line.label.strip() else text


def _span(span: Span) -> str:
    text = _escape(span.text)
    if span.link is not None and span.link.startswith("https://"):
        return f'<a href="{html.escape(span.link)}">{text}</a>'
    name = ELEMENTS.get(span.style)
    return f"<{name}>{text}</{name}>" if name else text


def _escape(text: str) -> str:
    return html.escape(safe(" ".join(text.split("\n"))))
