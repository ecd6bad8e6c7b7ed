"""Import modules on first use: the public names of a package, and optional packages with a clear error."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from lightning_perf.errors import UserError
from lightning_perf.project import install_command


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions that let a package offer names without importing their modules (PEP 562).

    Example:
        >>> find, _ = lazy_names("lightning_perf", {"format_bytes": "lightning_perf.units"})
        >>> find("format_bytes").__module__
        'lightning_perf.units'
    """

    def find(name: str) -> Any:
        if name in homes:
            return getattr(import_module(homes[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted({*vars(sys.modules[package]), *homes})


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
