"""Import on first use: public names, optional packages with their install command, and named objects."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from lightning_perf.errors import UserError, reason_of

REPOSITORY_URL = "https://github.com/lightning-perf/lightning_perf"

_SOURCE = f" @ git+{REPOSITORY_URL}"
"""The source for pip. Set it to an empty string once the package is on PyPI, and every hint changes with it."""


def install_command(extra: str = "") -> str:
    """Return the command that installs this package.

    Example:
        >>> print(install_command("train"))
        pip install "lightning-perf[train] @ git+https://github.com/lightning-perf/lightning_perf"
    """
    extras = f"[{extra}]" if extra else ""
    return f'pip install "lightning-perf{extras}{_SOURCE}"'


def page_url(page: str) -> str:
    """Return the address of a page of the documentation.

    Example:
        >>> page_url("docs/profiling.md")
        'https://github.com/lightning-perf/lightning_perf/blob/main/docs/profiling.md'
    """
    return f"{REPOSITORY_URL}/blob/main/{page}"


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions that let a package offer names without importing their modules (PEP 562).

    The names are those that the package imports for type checkers, in the block ``if TYPE_CHECKING``.

    Example:
        >>> find, _ = lazy_names("lightning_perf.history")
        >>> find("History").__module__
        'lightning_perf.history.document'
    """
    homes = type_checking_imports(package)

    def find(name: str) -> Any:
        if name in homes:
            return getattr(import_module(homes[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted({*vars(sys.modules[package]), *homes})


def type_checking_imports(package: str) -> dict[str, str]:
    """Return the names that a package imports for type checkers only, with the modules that define them."""
    loader: Any = sys.modules[package].__loader__
    tree = ast.parse(loader.get_source(package))
    blocks = [each for each in tree.body if isinstance(each, ast.If)]
    imports = [each for block in blocks for each in block.body if isinstance(each, ast.ImportFrom)]
    return {name.name: each.module for each in imports if each.module for name in each.names}


class MissingExtraError(UserError, ImportError):
    """An optional package is not installed. The message names the command that installs its extra."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed. Install it with: {install_command(extra)}")
        self.package = package
        self.extra = extra


def import_extra(module: str, extra: str) -> Any:
    """Import a module that an extra installs, or raise a `MissingExtraError`."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingExtraError(module.partition(".")[0], extra) from error


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
