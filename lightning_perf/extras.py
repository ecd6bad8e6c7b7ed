"""What to say when an optional package is not installed."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["MissingExtraError", "import_extra"]


class MissingExtraError(ImportError):
    """An optional package is needed and not installed.

    Args:
        package: The package, by its import name.
        extra: The extra of lightning-perf that brings it.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f'{package} is not installed. Install it with: pip install "lightning-perf[{extra}]"')
        self.package = package
        self.extra = extra


def import_extra(module: str, extra: str) -> Any:
    """Import a module that an extra brings.

    Args:
        module: Its full name.
        extra: The extra of lightning-perf that brings it.

    Returns:
        The module.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingExtraError(module.partition(".")[0], extra) from error
