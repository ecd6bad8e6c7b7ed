"""Reads the bins of a lane as the page's JavaScript does."""

import base64


def unpack(text: str) -> list[list[tuple[int, int]]]:
    """For each bin its parts as pairs of code and share, the largest first.

    Example:
        >>> unpack("AgEA/wEA")
        [[(0, 255)], [(0, 255)], []]
    """
    data = base64.b64decode(text)
    found: list[list[tuple[int, int]]] = []
    at = 0
    while at < len(data):
        count, parts = data[at], data[at + 1]
        values = data[at + 2 : at + 2 + 2 * parts]
        found += [list(zip(values[::2], values[1::2], strict=True)) for _ in range(count)]
        at += 2 + 2 * parts
    return found
