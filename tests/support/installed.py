"""Whether this package is installed, and not only on the path: commands and entry points exist only then."""

import importlib.metadata

import pytest

__all__ = ["needs_installation"]


def _is_installed() -> bool:
    try:
        importlib.metadata.distribution("lightning-perf")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


needs_installation = pytest.mark.skipif(not _is_installed(), reason="needs the package installed: pip install -e .")
