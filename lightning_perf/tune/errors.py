"""Errors of the tuner."""

from __future__ import annotations

__all__ = ["TrialError", "TuneError"]


class TuneError(ValueError):
    """The training, or a setting of the tuner, cannot be used; the message says what was wrong and what to do."""


class TrialError(Exception):
    """A lever failed. Its row says the reason; the others go on."""
