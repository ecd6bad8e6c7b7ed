"""A griffe extension: ``Example:`` in a docstring starts a section of examples, as ``Examples:`` does."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


class ExampleSections(Extension):
    """Renames ``Example`` sections before griffe parses them."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rename the section in the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
