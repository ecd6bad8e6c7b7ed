"""Reports on hangs: by a clock of our own, of real trainings, and of an extension that holds Python's lock."""

from __future__ import annotations

import ctypes
import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from lightning_perf import PerfCallback
from lightning_perf.callbacks.steps.hang_watch import HangWatch
from lightning_perf.run_files.hangs import HANGS, HangReport, open_hangs, stacks_path
from tests.callbacks.training import Points, context, make_module, make_trainer
from tests.support.processes import fork_ranks


def watch(folder: Path, after_s: float, counts: list[int]) -> HangWatch:
    return HangWatch(after_s, context(folder), lambda: tuple(counts))


def reports(folder: Path) -> tuple[HangReport, ...]:
    return HANGS.read_all(folder)


def test_reports_come_at_growing_intervals_and_learn_how_long_a_phase_takes(tmp_path: Path) -> None:
    counts = [0]
    subject = watch(tmp_path, 60, counts)
    seconds = iter(range(1, 10_000))
    begin_s = math.ceil(time.monotonic())  # a whole number, so that differences are exact

    def look(times: int) -> list[tuple[int, bool]]:
        for _ in range(times):
            subject.look(begin_s + next(seconds))
        return [(round(report.seconds), report.continued) for report in reports(tmp_path)]

    with pytest.warns(RuntimeWarning, match="on rank 0, no step or batch has ended for 1 min") as warned:
        found = look(500)
    assert found == [(60, False), (120, False), (240, False), (480, False)]
    assert len(warned) == 1
    assert [report.phase for report in open_hangs(tmp_path)] == ["training"]
    counts[0] += 1
    assert look(900)[4:] == [(500, True)]  # the same phase may now take 1,000 s
    assert not open_hangs(tmp_path)
    with pytest.warns(RuntimeWarning, match="no step or batch"):
        assert look(200)[5:] == [(1000, False)]


def test_time_in_which_the_process_was_stopped_does_not_count(tmp_path: Path) -> None:
    subject, begin_s = watch(tmp_path, 60, [0]), time.monotonic()
    for after_s in (1, 2, 3600, 3601, 3630):
        subject.look(begin_s + after_s)
    assert not reports(tmp_path)


def test_the_stack_is_saved_while_an_extension_holds_the_lock_of_python(tmp_path: Path) -> None:
    subject = watch(tmp_path, 0.1, [0])
    subject.open()
    ctypes.PyDLL(None).usleep(999_000)
    subject.close()
    assert "test_the_stack_is_saved" in stacks_path(tmp_path, 0).read_text()


def test_a_forked_child_can_end_while_the_timer_is_set(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text = f"""
import os, pathlib, sys
from tests.callbacks.steps.test_hang_watch import watch
watch(pathlib.Path({str(tmp_path)!r}), 60, [0]).open()
child = os.fork()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 7)
"""
    script.write_text(text)
    assert fork_ranks(str(script), ranks=1, timeout_s=100).returncode == 7


def stick(index: int) -> None:
    time.sleep(2 if index == 30 else 0)


@pytest.mark.parametrize("case", ["worker", "hook", "healthy"])
def test_a_training(case: str, tmp_path: Path) -> None:
    def on_train_batch_end(module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        time.sleep(2 if case == "hook" and batch_idx == 9 else 0.01)

    dataset = Points(60, stick if case == "worker" else int)
    after_s = 60 if case == "healthy" else 1
    trainer = make_trainer(
        tmp_path, PerfCallback(hang_after=after_s, dirpath=tmp_path / "perf", report="none", probe=False), max_epochs=1
    )
    module = make_module(on_train_batch_end=on_train_batch_end)
    loader = DataLoader(dataset, 2, num_workers=1 if case == "worker" else 0)
    if case == "healthy":
        trainer.fit(module, loader)
        assert not list((tmp_path / "perf").glob("hang*"))
        return
    with pytest.warns(RuntimeWarning, match="no step or batch has ended for ") as warned:
        trainer.fit(module, loader)
    text = "".join(str(each.message) for each in warned)
    found = {(report.step, report.phase.split(".")[-1]): report for report in reports(tmp_path / "perf")}
    place = found[15, "fetch"].place if case == "worker" else found[9, "on_train_batch_end"].place
    assert all(report.continued for report in found.values())
    stacks = stacks_path(tmp_path / "perf", 0).read_text()
    if case == "worker":
        assert "in select" in place or sys.platform != "linux"
        assert re.search(r"Child process \d+ \(.+\) is waiting", text) or sys.platform != "linux"
        assert "in _try_get_data" in stacks
    else:
        assert re.fullmatch(r"test_hang_watch.py:\d+ in on_train_batch_end", place)
        assert "time.sleep(2" in stacks
