"""Two folders whose files have equal names, sizes and times are two runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lightning_perf.tensorboard.cache import BESIDE, key_of
from lightning_perf.tensorboard.discovery import Sniffer, discover, read_roots
from lightning_perf.tensorboard.document_queue import DocumentQueue
from lightning_perf.tensorboard.task import make_task
from tests.tensorboard.support import asker, write_trace
from tests.tensorboard.test_document_queue import until


def test_both_of_two_equal_folders_get_their_report(logdir: Path) -> None:
    trace = write_trace(logdir / "a" / "x.pt.trace.json")
    shutil.copytree(logdir / "a", logdir / "b")
    for copy in (trace, logdir / "b" / trace.name):
        os.utime(copy, ns=(10**18, 10**18))
    runs = discover(read_roots(str(logdir), None), Sniffer()).runs
    tab = asker(logdir, DocumentQueue())
    first, second = (make_task(runs[name], key_of(runs[name])) for name in ("a", "b"))
    assert first.key == second.key
    for name in ("a", "b"):
        # Right after the first run's document was made, its answer is still remembered.
        until(lambda name=name: tab.get("data/report", run=name).status_code != 202)  # type: ignore[misc]
        report = tab.json("data/report", run=name)
        assert report["sources"] == [f"{logdir}/{name}/{trace.name}"]
        assert len(list((logdir / name / BESIDE).iterdir())) == 2
