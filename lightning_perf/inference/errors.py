"""Report errors of inference measurements: why a variant failed, and which package is missing."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from lightning_perf.errors import UserError
from lightning_perf.project import install_command
from lightning_perf.workers.process import WorkerError

__all__ = [
    "InferenceError",
    "VariantError",
    "missing_compiler",
    "missing_package",
    "package_versions",
    "quietly",
    "reason_of",
    "require",
    "variant_errors",
    "worker_errors",
]


class InferenceError(UserError, ValueError):
    """The model, its data or a setting cannot be used; the message names the problem, its place and the fix."""


class VariantError(Exception):
    """A variant cannot be built or run on this machine. Its row shows the reason, and the other variants continue."""


@contextmanager
def worker_errors() -> Iterator[None]:
    """Convert errors of a worker process into a `VariantError`.

    Raises:
        VariantError: The worker process failed, crashed or timed out.
    """
    try:
        yield
    except WorkerError as error:
        raise VariantError(str(error)) from error


_REASON_LENGTH = 240
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_GENERIC = re.compile(r"^(failed to|while executing|set torch|the following|traceback|backend compiler)", re.IGNORECASE)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep exporters and compilers from writing hints for their own developers to the terminal.

    Warnings, Python's standard output and error, and log records below ``ERROR`` are dropped. Errors are still raised.
    The settings apply to the whole process, so do not use this while other threads run.
    """
    disabled = logging.root.manager.disable
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logging.disable(max(disabled, logging.WARNING))
        try:
            yield
        finally:
            logging.disable(disabled)


@contextlib.contextmanager
def variant_errors(action: str) -> Iterator[None]:
    """Run code of a library quietly and turn its errors into the reason for a variant's row.

    Args:
        action: The start of the message, e.g. ``torch.export cannot take this model``.

    Raises:
        VariantError: The code failed; the message has the action and the first cause, on one line.
    """
    try:
        with quietly():
            yield
    except (VariantError, InferenceError):
        raise
    except Exception as error:
        raise VariantError(f"{action}: {reason_of(error)}") from error


def reason_of(error: BaseException) -> str:
    r"""Return the innermost cause of an error, on one line.

    Compilers wrap the cause in long reports about their own stages; the cause shows the problem with the model.

    Example:
        >>> try:
        ...     try:
        ...         raise ValueError("reshape to 32 rows\nlong report")
        ...     except ValueError as cause:
        ...         raise RuntimeError("step 1/3 failed") from cause
        ... except RuntimeError as error:
        ...     print(reason_of(error))
        ValueError: reshape to 32 rows
    """
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in _ANSI.sub("", str(error)).splitlines()]
    lines = [line for line in lines if line]
    telling = [line for line in lines if not _GENERIC.match(line)] or lines
    if not telling:
        return type(error).__name__
    line = telling[0]
    return f"{type(error).__name__}: {line if len(line) <= _REASON_LENGTH else line[: _REASON_LENGTH - 1] + '…'}"


def missing_package(module: str, *, package: str = "", extra: str = "") -> str | None:
    """Return that a package is missing and how to install it, or None if it is installed.

    Args:
        module: Import name of the package.
        package: Name to install it by; give this or `extra`.
        extra: The extra of lightning-perf that installs it.

    Example:
        >>> missing_package("json", package="json")
        >>> missing_package("no_such_runtime", package="no-such-runtime")
        'no_such_runtime is not installed. Install it with: pip install "no-such-runtime"'
    """
    if find_spec(module) is not None:
        return None
    command = f'pip install "{package}"' if package else install_command(extra)
    return f"{module} is not installed. Install it with: {command}"


def missing_compiler() -> str | None:
    """Return that the C++ compiler is missing, or None if TorchInductor will find one.

    It searches like TorchInductor (``torch._inductor.config.cpp.cxx``): the variable ``CXX``, then the usual name on
    this system.
    """
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(name.split()[0]) is not None:
        return None
    return (
        f"TorchInductor needs a C++ compiler, and {name} was not found: install one (apt-get install g++), or set CXX"
    )


def require(*reasons: str | None) -> None:
    """Raise an error with the first reason that is not None.

    Raises:
        VariantError: There is such a reason.
    """
    for reason in reasons:
        if reason is not None:
            raise VariantError(reason)


def package_versions(*packages: str) -> dict[str, str]:
    """Return the versions of packages by name; packages that are not installed are left out.

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
