"""Errors of inference measurements: why a variant failed, and which package is missing."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from lightning_perf.errors import UserError, whole_reason_of
from lightning_perf.lazy_imports import install_command
from lightning_perf.workers.process import WorkerError


class InferenceError(UserError, ValueError):
    """The model, its data or a setting cannot be used; the message names the problem, its place and the fix."""


class VariantError(Exception):
    """A variant cannot be built or run on this machine. Its row shows the reason, and the other variants continue."""


@contextlib.contextmanager
def worker_errors() -> Iterator[None]:
    """Turn errors of a worker process into a `VariantError`."""
    try:
        yield
    except WorkerError as error:
        raise VariantError(str(error)) from error


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
    """Run code of a library quietly; its error becomes a `VariantError` with the action and the first cause."""
    try:
        with quietly():
            yield
    except (VariantError, InferenceError):
        raise
    except Exception as error:
        raise VariantError(f"{action}: {whole_reason_of(error)}") from error


def missing_package(module: str, *, package: str = "", extra: str = "") -> str | None:
    """Return that a package is missing and how to install it, by its name or by an extra, or None if it is installed.

    Example:
        >>> missing_package("json", package="json")
        >>> missing_package("no_such_runtime", package="no-such-runtime")
        'no_such_runtime is not installed. Install it with: pip install "no-such-runtime"'
    """
    if find_spec(module) is not None:
        return None
    command = f'pip install "{package}"' if package else install_command(extra)
    return f"{module} is not installed. Install it with: {command}"


def require(*reasons: str | None) -> None:
    """Raise a `VariantError` with the first reason that is not None."""
    for reason in reasons:
        if reason is not None:
            raise VariantError(reason)


def package_versions(*packages: str) -> dict[str, str]:
    """Return the versions of packages by name; packages that are not installed are left out.

    Example:
        >>> package_versions("no-such-package")
        {}
    """
    found = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
