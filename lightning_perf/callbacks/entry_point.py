"""The entry point through which Lightning adds a `PerfCallback` to every Trainer of a script.

Each Trainer calls `make_callbacks` when it is created. Only a process that ``lightning-perf run`` started gets a
callback. So this module imports nothing else until it knows.
"""

from __future__ import annotations

import logging
import os
from typing import Any


def make_callbacks() -> list[Any]:
    """Return the callbacks to add to a Trainer: one under ``lightning-perf run``, none in all other processes."""
    if not os.environ.get("LIGHTNING_PERF_RUN"):
        return []
    from lightning_perf.callbacks.perf import InjectedCallback
    from lightning_perf.run_files.launch import CallbackAdded, launch_settings, leave_note

    settings = launch_settings()
    if settings is None:
        return []
    _silence_announcement()
    leave_note(CallbackAdded())
    arguments: dict[str, Any] = settings.callback
    return [InjectedCallback(**arguments)]


def _silence_announcement() -> None:
    """Keep Lightning from logging that it adds this callback. The output of the script stays its own."""
    for package in ("lightning.fabric", "lightning_fabric"):
        logger = logging.getLogger(f"{package}.utilities.registry")
        if _is_of_others not in logger.filters:
            logger.addFilter(_is_of_others)


def _is_of_others(record: logging.LogRecord) -> bool:
    return "entry point 'lightning_perf'" not in record.getMessage()
