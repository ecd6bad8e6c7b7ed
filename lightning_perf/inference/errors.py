"""Errors of the inference room."""

from __future__ import annotations

__all__ = ["InferenceError", "VariantError"]


class InferenceError(ValueError):
    """The model, its data or a setting cannot be used; the message says what was wrong, where, and what to do."""


class VariantError(Exception):
    """A variant cannot be built or run here. Its row says the reason; the other variants go on."""
