"""Text that any terminal can show: an ASCII fallback, and escaped control characters."""

from __future__ import annotations

import codecs
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # rich is loaded by the first text that needs it, not by ``--help``
    from rich.text import Text


ASCII_FALLBACK = "ascii_fallback"
"""The handler's name: ``text.encode("ascii", ASCII_FALLBACK)``."""

_NEAREST = {
    "µ": "u", "×": "x", "…": "...", "–": "-", "—": "-", "−": "-", "‑": "-", "·": "*", "→": "->", "►": ">", "±": "+/-",
    "≥": ">=", "≤": "<=", "°": " deg ", "²": "^2", "√": "sqrt ", "─": "-", "━": "-", "│": "|", "•": "*",
    "‖": "||", "¹": "^1", "⁻": "^-", "⁶": "^6", "▏": " ", "▎": " ",
    "▍": " ", "▌": "#", "▋": "#", "▊": "#", "▉": "#", "█": "#",
}  # fmt: skip


def ascii_fallback(text: str, encoding: str | None) -> str:
    """Convert text to characters that a stream with this encoding can show; None takes any text.

    Example:
        >>> ascii_fallback("100 µs, 1.04× …", "ascii")
        '100 us, 1.04x ...'
        >>> ascii_fallback("100 µs, 1.04× …", "latin-1")
        '100 µs, 1.04× ...'
    """
    return text if encoding is None else text.encode(encoding, ASCII_FALLBACK).decode(encoding)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    # The replacement of a character has to be encodable itself, so all of it is ASCII.
    return "".join(_NEAREST.get(char, "?") for char in error.object[error.start : error.end]), error.end


codecs.register_error(ASCII_FALLBACK, _replace)


UNBREAKABLE = "\u2800"
"""A blank that rich takes for a part of a word (BRAILLE PATTERN BLANK). `ReportConsole` prints a space for it."""

_UNIT = re.compile(r"(?<=\d) (?=(?:%|pt|[nµm]?s|min|h|[KMGTP]i?B|[kMGTPE]?FLOPs?(?:/s)?)(?!\w))")

# Control and format characters (escape sequences, line breaks, reversed writing), surrogates, private use, unassigned.
_UNSAFE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def safe(text: str) -> str:
    r"""Escape characters that a terminal or a browser acts on: control characters, reversed writing and the like.

    Example:
        >>> safe("a\x1b[31mb\u202e")
        'a\\x1b[31mb\\u202e'
    """
    return "".join(char if unicodedata.category(char) not in _UNSAFE else ascii(char)[1:-1] for char in text)


def plain(text: str, style: str = "") -> Text:
    r"""Return text that prints literally: neither markup nor escape sequences in it have an effect.

    Example:
        >>> plain("[red]a\x1b[31mb\u202e").plain
        '[red]a\\x1b[31mb\\u202e'
    """
    from rich.text import Text

    return Text(safe(text), style=style)


def prose(text: str, style: str = "") -> Text:
    """Return text that wraps, but not at a no-break space or in a figure with its unit.

    Example:
        >>> prose("33.4 % of 178 ms in 5 steps").plain.replace(UNBREAKABLE, "_")
        '33.4_% of 178_ms in 5 steps'
    """
    return plain(_UNIT.sub(UNBREAKABLE, text).replace("\u00a0", UNBREAKABLE), style)


def shorten(text: str, width: int) -> str:
    """Cut a long name in the middle: names of kernels and operators differ at both ends.

    Example:
        >>> shorten("void at::native::elementwise_kernel<128, 4>", 20)
        'void at::n…l<128, 4>'
    """
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
