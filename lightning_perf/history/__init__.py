"""Keep the figures of runs over many commits: trends, change points, and gates against the history.

The public names load on first use, so ``lightning-perf --help`` imports no scipy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_perf.lazy_imports import lazy_names

if TYPE_CHECKING:
    from lightning_perf.history.document import History
    from lightning_perf.history.gate import HistoryGate, gate_runs
    from lightning_perf.history.read import read_history, set_baseline
    from lightning_perf.history.store import Added, HistoryError, add_runs

__all__ = [
    "Added",
    "History",
    "HistoryError",
    "HistoryGate",
    "add_runs",
    "gate_runs",
    "read_history",
    "set_baseline",
]

__getattr__, __dir__ = lazy_names(__name__)
