"""Names from a trace, made safe to print: a trace comes from a stranger, and its names may hold anything."""

from __future__ import annotations

import unicodedata

from rich.text import Text

__all__ = ["plain", "shorten"]

# Control and format characters (escape sequences, line breaks, reversed writing), surrogates, private use, unassigned.
_UNSAFE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def plain(text: str, style: str = "") -> Text:
    r"""Text that prints as itself: neither markup nor escape sequences in it do anything.

    Example:
        >>> plain("[red]a\x1b[31mb\u202e").plain
        '[red]a\\x1b[31mb\\u202e'
    """
    return Text("".join(char if _is_safe(char) else ascii(char)[1:-1] for char in text), style=style)


def shorten(text: str, width: int) -> str:
    """Cut a long name in the middle: kernels differ at both ends.

    Example:
        >>> shorten("void at::native::elementwise_kernel<128, 4>", 20)
        'void at::n…l<128, 4>'
    """
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def _is_safe(char: str) -> bool:
    return unicodedata.category(char) not in _UNSAFE
