"""Errors of the inference room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lightning_perf.workers.process import WorkerError

__all__ = ["InferenceError", "VariantError", "worker_errors"]


class InferenceError(ValueError):
    """The model, its data or a setting cannot be used; the message says what was wrong, where, and what to do."""


class VariantError(Exception):
    """A variant cannot be built or run here. Its row says the reason; the other variants go on."""


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
