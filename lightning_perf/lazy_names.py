"""Public names of a package that load on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions with which a package offers names without importing their modules (PEP 562).

    Args:
        package: Its name.
        homes: For each public name, the module that defines it.

    Returns:
        The package's ``__getattr__`` and ``__dir__``.

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
