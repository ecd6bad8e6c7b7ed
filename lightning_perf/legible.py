"""The error handler ``legible`` for output streams: what an encoding lacks becomes its nearest ASCII, not ``?``.

A ``?`` would cost figures their meaning: ``100 ?s`` is µs or ms.
"""

from __future__ import annotations

import codecs

__all__ = ["LEGIBLE", "legible"]

LEGIBLE = "legible"
"""The handler's name: ``text.encode("ascii", LEGIBLE)``."""

_NEAREST = {
    "µ": "u", "×": "x", "…": "...", "–": "-", "—": "-", "−": "-", "‑": "-", "·": "*", "→": "->", "►": ">", "±": "+/-",
    "≥": ">=", "≤": "<=", "°": " deg ", "²": "^2", "√": "sqrt ", "─": "-", "━": "-", "│": "|", "•": "*",
    "‖": "||", "¹": "^1", "⁻": "^-", "▏": " ", "▎": " ", "▍": " ", "▌": "#", "▋": "#", "▊": "#", "▉": "#", "█": "#",
}  # fmt: skip


def legible(text: str, encoding: str | None) -> str:
    """Text as an output stream can show it.

    Args:
        text: What is to be written.
        encoding: The stream's encoding; None for one that takes any text.

    Example:
        >>> legible("100 µs, 1.04× …", "ascii")
        '100 us, 1.04x ...'
        >>> legible("100 µs, 1.04× …", "latin-1")
        '100 µs, 1.04× ...'
    """
    return text if encoding is None else text.encode(encoding, LEGIBLE).decode(encoding)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    # What replaces a character has to be encodable itself: all of it is ASCII.
    return "".join(_NEAREST.get(char, "?") for char in error.object[error.start : error.end]), error.end


codecs.register_error(LEGIBLE, _replace)
