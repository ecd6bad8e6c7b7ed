"""The labels a sign-language data set may use, and how a name is read as one."""

from __future__ import annotations

from collections.abc import Iterable
from string import ascii_lowercase

__all__ = ["LABELS", "MNIST_LABELS", "as_label", "ordered"]

LABELS: tuple[str, ...] = (*"abcdefghiklmnopqrstuvwxy", "background")
"""The 25 labels of the original: the letters without ``j`` and ``z``, whose signs are movements, and ``background``."""

MNIST_LABELS: tuple[str, ...] = tuple(ascii_lowercase)
"""Sign-Language-MNIST numbers labels by the letter's place in the alphabet (9 and 25, ``j`` and ``z``, are unused)."""

_KNOWN = frozenset(ascii_lowercase) | frozenset("0123456789")
_SYNONYMS = {
    "background": "background",
    "nothing": "background",
    "blank": "background",
    "space": "space",
    "del": "delete",
    "delete": "delete",
}


def as_label(name: str) -> str | None:
    """Read a folder name or the first part of a file name as a label.

    Args:
        name: For example ``"A"``, ``"background"``, ``"7"``.

    Returns:
        The label in lower case, or None when the name is no letter, digit, ``background`` (also called ``nothing`` or
        ``blank``), ``space`` or ``delete``.

    Examples:
        >>> as_label("A"), as_label("nothing"), as_label("cat")
        ('a', 'background', None)
    """
    key = name.strip().casefold()
    return key if key in _KNOWN else _SYNONYMS.get(key)


def ordered(labels: Iterable[str]) -> tuple[str, ...]:
    """Distinct labels in the order classes are numbered: digits, letters, then the words.

    Examples:
        >>> ordered(["background", "b", "7", "a", "b"])
        ('7', 'a', 'b', 'background')
    """
    return tuple(sorted(set(labels), key=lambda label: (len(label) > 1, label)))
