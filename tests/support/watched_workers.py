"""Worker processes that a test watches, and may kill."""

import os
import signal
from typing import Any, ClassVar

import pytest

from lightning_perf.workers.process import WorkerProcess
from tests.support.processes import dies


class Watched(WorkerProcess):
    """Notes each worker process; the one with the first result gets a signal, where one is planted."""

    started: ClassVar[list[WorkerProcess]]
    blow: ClassVar[signal.Signals | None]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.started.append(self)

    def receive(self, *kinds: Any, **options: Any) -> Any:
        answer = super().receive(*kinds, **options)
        if self.blow is not None:
            os.kill(self.pid, self.blow)
            assert dies(self.pid)
            type(self).blow = None
        return answer


def watch(monkeypatch: pytest.MonkeyPatch, module: Any) -> type[Watched]:
    """Let a module start watched worker processes."""
    monkeypatch.setattr(Watched, "started", [], raising=False)
    monkeypatch.setattr(Watched, "blow", None, raising=False)
    monkeypatch.setattr(module, "WorkerProcess", Watched)
    return Watched
