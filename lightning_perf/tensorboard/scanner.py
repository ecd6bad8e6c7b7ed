"""The table of runs. It is updated in the background when a request finds it outdated."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from lightning_perf.tensorboard.discovery import Root, Sniffer, Table, discover

__all__ = ["Scanner"]

FRESH_S = 2.0
FRESH_LOOKS = 10.0
"""A table is fresh for two seconds, or for ten times the duration of its scan if that is longer."""

PATIENCE_S = 0.3


class Scanner:
    """Keeps the table of runs.

    Args:
        roots: The folders to look in.
        fresh_s: How long a table is fresh at least.
        fresh_looks: It is fresh for this multiple of the duration of its scan.
        patience_s: How long a request waits for a fresh table if there is an older one.
    """

    def __init__(
        self,
        roots: Sequence[Root],
        fresh_s: float = FRESH_S,
        fresh_looks: float = FRESH_LOOKS,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._roots = roots
        self._fresh_s = fresh_s
        self._fresh_looks = fresh_looks
        self._patience_s = patience_s
        self._sniffer = Sniffer()
        self._lock = threading.Lock()
        self._scanned = threading.Event()
        self._scanned.set()
        self._table: Table | None = None
        self._stale_s = 0.0

    def table(self, wait_s: float) -> Table | None:
        """Return the table of runs.

        Args:
            wait_s: How long to wait for the first table.

        Returns:
            The latest table, or None if the first scan has not finished.
        """
        with self._lock:
            if time.monotonic() >= self._stale_s and self._scanned.is_set():
                self._scanned.clear()
                threading.Thread(target=self._scan, name="lightning_perf runs", daemon=True).start()
        self._scanned.wait(wait_s if self._table is None else min(wait_s, self._patience_s))
        return self._table

    def _scan(self) -> None:
        begin = time.monotonic()
        try:
            table = discover(self._roots, self._sniffer)
        except Exception as error:  # any storage may raise anything, and the reader must see it
            known = self._table or Table()
            table = Table(known.runs, (f"The runs cannot be listed ({type(error).__name__}: {error}).",))
        end = time.monotonic()
        self._table = table
        self._stale_s = end + max(self._fresh_s, self._fresh_looks * (end - begin))
        self._scanned.set()
