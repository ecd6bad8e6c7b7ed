"""Facts that need files or other programs: found in a thread, so that a slow disk does not hold up the training."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from lightning_perf.callbacks.run_record.run_facts import Later
from lightning_perf.compare.records.fingerprint import NOT_HASHED
from lightning_perf.run_files.run_record import FactValue

WAIT_S = 1.0
"""Longest wait for all facts, at the end of training."""


class LateFacts:
    """Finds facts in one thread each, which do not keep the process alive."""

    def __init__(self, sources: Mapping[str, Later]) -> None:
        self._found: dict[str, FactValue] = {}
        self._threads = {
            name: threading.Thread(target=self._find, args=(name, source), name=f"lightning_perf {name}", daemon=True)
            for name, source in sources.items()
        }
        for thread in self._threads.values():
            thread.start()

    def __bool__(self) -> bool:
        """Whether any fact is still to be collected."""
        return bool(self._threads)

    def collect(self) -> dict[str, FactValue]:
        """Return the facts that were found since the last call."""
        done = [name for name, thread in self._threads.items() if not thread.is_alive()]
        for name in done:
            del self._threads[name]
        return {name: self._found[name] for name in done}

    def finish(self) -> dict[str, FactValue]:
        """Wait for the remaining facts, for a limited time, and return them."""
        end_s = time.monotonic() + WAIT_S
        for thread in self._threads.values():
            thread.join(max(0.0, end_s - time.monotonic()))
        found = self.collect()
        late = dict.fromkeys(self._threads, f"{NOT_HASHED}reading the files takes longer than the training")
        self._threads = {}
        return found | late

    def _find(self, name: str, source: Later) -> None:
        try:
            self._found[name] = source()
        except Exception as error:
            self._found[name] = f"{NOT_HASHED}{error}"
