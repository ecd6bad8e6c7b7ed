"""The entry point through which Lightning adds a `PerfCallback` to every Trainer of a script.

Each Trainer calls `make_callbacks` when it is created. Only a process that ``lightning-perf run`` started gets a
callback. So this module imports nothing else until it knows.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["make_callbacks"]


def make_callbacks() -> list[Any]:
    """Return the callbacks to add to a Trainer: one under ``lightning-perf run``, none in all other processes."""
    if not os.environ.get("LIGHTNING_PERF_RUN"):
        return []
    from lightning_perf.callbacks.injected import InjectedCallback
    from lightning_perf.run_files.launch import CallbackAdded, launch_settings, leave_note

    settings = launch_settings()
    if settings is None:
        return []
    leave_note(CallbackAdded())
    arguments: dict[str, Any] = settings.callback
    return [InjectedCallback(**arguments)]
