"""Fits that do nothing but train, without a word: what benchmarks time."""

from __future__ import annotations

import logging
import warnings
from typing import Any

__all__ = ["QUIET_TRAINER", "be_quiet"]

QUIET_TRAINER: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
"""Arguments of a Trainer."""


def be_quiet() -> None:
    """Leave out warnings, and what Lightning says at each start of a fit. Call it after Lightning's import."""
    warnings.simplefilter("ignore")
    for package in ("lightning.pytorch", "pytorch_lightning"):
        # Whichever package was imported last speaks for both.
        for name in (package, f"{package}.utilities.rank_zero"):
            logging.getLogger(name).setLevel(logging.ERROR)
