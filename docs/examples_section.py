"""griffe: ``Example:`` in a docstring begins a section of examples, as ``Examples:`` does, and no box of prose."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


class ExampleSections(Extension):
    """Renames the sections before they are parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rename the section of one object."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
