"""Lines and tables as HTML for a notebook, without a style of its own, so that they look like the notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator

from lightning_perf.show.blocks import Block, Line, Span, Style, Table, as_text
from lightning_perf.show.terminal_text import safe

ELEMENTS: dict[Style, str] = {"strong": "b", "warning": "b", "bad": "b", "quiet": "small", "command": "code"}


def to_html(blocks: Iterable[Block]) -> str:
    """Return lines and tables as HTML. Names in them have no effect."""
    return f"<div>{''.join(_parts(blocks))}</div>"


def _parts(blocks: Iterable[Block]) -> Iterator[str]:
    for block in as_text(blocks):
        if isinstance(block, Line):
            yield f"<div>{_line(block)}</div>"
        elif isinstance(block, Table):
            heads = "".join(f"<th>{_escape(column.head)}</th>" for column in block.columns)
            rows = ("".join(f"<td>{_escape(f'{cell.text}{cell.detail}')}</td>" for cell in row) for row in block.rows)
            yield f"<table><tr>{heads}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _line(line: Line) -> str:
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
