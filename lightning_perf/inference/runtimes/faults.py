"""What libraries print while they build, and what they raise when they cannot."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator

from lightning_perf.inference.errors import InferenceError, VariantError

__all__ = ["quietly", "reason_of", "variant_errors"]

_REASON_LENGTH = 240
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_GENERIC = re.compile(r"^(failed to|while executing|set torch|the following|traceback|backend compiler)", re.IGNORECASE)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep exporters and compilers from writing to the terminal: they advise their own developers there.

    Warnings, Python's standard output and error, and log records below ``ERROR`` are dropped. Errors are raised as
    ever. The switches belong to the whole process: not for use beside other threads.
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
    """Run a library's work quietly and turn what it raises into a variant's reason.

    Args:
        action: What cannot be done, as ``torch.export cannot take this model``.

    Raises:
        VariantError: The work failed: the action and the first cause, in a line.
    """
    try:
        with quietly():
            yield
    except (VariantError, InferenceError):
        raise
    except Exception as error:
        raise VariantError(f"{action}: {reason_of(error)}") from error


def reason_of(error: BaseException) -> str:
    r"""The innermost cause of an error, in a line.

    Compilers wrap the cause in reports of many lines about their own stages; the cause says what the model did.

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
