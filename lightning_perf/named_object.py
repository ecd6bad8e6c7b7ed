"""Import the object that an option names as ``package.module:name``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from lightning_perf.errors import UserError, reason_of

_FORM = "Give it as package.module:name"


def find_object(text: str, option: str) -> Any:
    """Import the object that an option names as ``package.module:name``; the current folder is searched, too."""
    module_name, colon, name = text.partition(":")
    if not colon or not module_name or not name:
        raise UserError(
            f"{option} '{text}': expected package.module:name, e.g. mypackage.models:Net.{_file_hint(text)}"
        )
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UserError(f"{option} {text}: importing {module_name} fails ({reason_of(error)}).") from error
        raise UserError(
            f"{option} {text}: there is no module {error.name}. {_FORM}, and run where it can be imported."
            f"{_file_hint(text)}"
        ) from error
    except Exception as error:  # the user's module runs at import
        raise UserError(f"{option} {text}: importing {module_name} fails ({reason_of(error)}).") from error
    for part in name.split("."):
        if not hasattr(found, part):
            public = [key for key in vars(found) if not key.startswith("_")]
            raise UserError(f"{option} {text}: {module_name} has no {part}. It has {', '.join(public[:20])}.")
        found = getattr(found, part)
    return found


def _file_hint(text: str) -> str:
    """Return the advice for users who gave the name of a Python file, or an empty string."""
    file, _, name = text.partition(":")
    if not file.endswith(".py"):
        return ""
    return f" For a file: {Path(file).stem}:{name or 'NAME'}, run in {Path(file).resolve().parent}."
