"""Whether a page can open in the user's browser."""

from __future__ import annotations

import os
import sys
from typing import IO


def has_browser(terminal: IO[str]) -> bool:
    """Return whether a page can open in a window of its own.

    Without a display, Python would start a text browser in the user's terminal. A pipe has no user who looks.
    """
    if not terminal.isatty():
        return False
    if sys.platform in ("darwin", "win32") or os.environ.get("BROWSER"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
