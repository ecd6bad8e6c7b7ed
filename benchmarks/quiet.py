"""Settings for fits that only train and print nothing, for benchmarks."""

from __future__ import annotations

import logging
import warnings
from typing import Any

QUIET_TRAINER: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
"""Arguments of a Trainer."""


def be_quiet() -> None:
    """Silence warnings, and Lightning's messages at each start of a fit. Call it after the import of Lightning."""
    warnings.simplefilter("ignore")
    for package in ("lightning.pytorch", "pytorch_lightning"):
        # The package that was imported last prints the messages of both.
        for name in (package, f"{package}.utilities.rank_zero"):
            logging.getLogger(name).setLevel(logging.ERROR)
