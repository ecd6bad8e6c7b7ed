"""Lists that a recording keeps as JSON text: input types and input dimensions."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["json_list"]


def json_list(text: str) -> list[Any]:
    """The list that a JSON text holds; an empty one for anything else.

    Args:
        text: An entry of `Trace.type_lists` or `Trace.shape_lists`.

    Example:
        >>> json_list('["float","Scalar"]'), json_list(""), json_list("5"), json_list("[" * 100_000)
        (['float', 'Scalar'], [], [], [])
    """
    try:
        found = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []
