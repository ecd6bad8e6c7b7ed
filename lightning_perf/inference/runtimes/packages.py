"""Which packages and tools are here, told without importing them."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from lightning_perf.inference.errors import VariantError

__all__ = ["missing_compiler", "missing_package", "package_versions", "require"]


def missing_package(module: str, install: str) -> str | None:
    """Say that a package is missing, and what brings it, or None when it is here.

    Args:
        module: Its import name.
        install: What to give to pip.

    Example:
        >>> missing_package("json", "json")
        >>> missing_package("no_such_runtime", "no-such-runtime")
        'no_such_runtime is not installed. Install it with: pip install "no-such-runtime"'
    """
    if find_spec(module) is not None:
        return None
    return f'{module} is not installed. Install it with: pip install "{install}"'


def missing_compiler() -> str | None:
    """Say that there is no C++ compiler, or None when TorchInductor will find one.

    It looks where TorchInductor does (``torch._inductor.config.cpp.cxx``): the variable ``CXX``, then the system's
    usual name.
    """
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(name.split()[0]) is not None:
        return None
    return f"TorchInductor needs a C++ compiler and there is no {name}: install one (apt-get install g++), or set CXX"


def require(*reasons: str | None) -> None:
    """Stop at the first reason.

    Raises:
        VariantError: One of them is a reason.
    """
    for reason in reasons:
        if reason is not None:
            raise VariantError(reason)


def package_versions(*packages: str) -> dict[str, str]:
    """Versions of installed packages by name; those not installed are left out.

    Example:
        >>> package_versions("no-such-package")
        {}
    """
    found = {package: _version(package) for package in packages}
    return {package: number for package, number in found.items() if number is not None}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
