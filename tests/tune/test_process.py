"""A training in a worker process: what the tuner makes of what happens to it. Worker processes: tests/workers."""

import sys
import time
from contextlib import suppress

import pytest

from lightning_perf.tune.errors import NotApplicableError, NoTrainingError, OutOfTimeError, TrialError
from lightning_perf.tune.messages import Order
from lightning_perf.tune.process import TrainingProcess
from tests.support.processes import dies


@pytest.fixture
def start():
    """Starts a worker process of ``stubs.py``."""
    processes = []

    def make(stub, folder=""):
        order = Order("a:b", None, (), 0, False, str(folder))
        processes.append(TrainingProcess(order, f"tests.tune.stubs:{stub}"))
        return processes[-1]

    yield make
    for process in processes:
        with suppress(ValueError, OSError):
            process.close()


def test_answers_come_through(start):
    process = start("train")
    process.ready(20)
    assert process.run(7, 20).steps == 7
    began = time.monotonic()
    process.close()
    assert time.monotonic() - began < 9  # it has ended by itself
    assert process._worker._process.returncode == 0


def test_losses_that_are_no_numbers_come_through(start):
    process = start("diverge")
    process.ready(20)
    assert repr(process.run(1, 20).losses) == "(nan, inf, -inf)"


def test_a_crash_tells_the_signal_and_the_last_lines(start):
    with pytest.raises(TrialError, match=r"crashed with SIGSEGV; last lines: noise \| noise \| last words$"):
        start("crash").ready(20)


def test_an_exit_tells_its_code(start):
    with pytest.raises(TrialError, match="ended with exit code 3; it printed nothing"):
        start("leave").ready(20)


def test_a_process_that_ends_between_windows(start):
    process = start("leave_after_ready")
    process.ready(20)
    process._worker._process.wait(20)
    with pytest.raises(TrialError, match="exit code 5"):
        process.run(1, 20)


def test_who_hangs_is_killed_with_its_children(start, tmp_path):
    process = start("hang", tmp_path / "child")
    process.ready(20)
    with pytest.raises(OutOfTimeError, match="longer than the budget allows"):
        process.run(1, 0.2)
    assert dies(int((tmp_path / "child").read_text()))
    assert process._worker.has_ended()


def test_a_killed_process_is_noticed_although_its_paused_children_hold_the_connection(start):
    process = start("die_beside_a_paused_child")
    process.ready(20)
    began = time.monotonic()
    with pytest.raises(TrialError, match="was killed by SIGKILL"):
        process.run(1, 60)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("stub", "kind"),
    [("not_applicable", NotApplicableError), ("no_training", NoTrainingError), ("broken", TrialError)],
)
def test_failures_are_told_apart(stub, kind, start):
    with pytest.raises(TrialError, match=f"^{stub}$") as caught:
        start(stub).ready(20)
    assert type(caught.value) is kind


def test_no_process_at_all(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(TrialError, match="its process cannot be started"):
        TrainingProcess(Order("a:b", None, (), 0, False, ""))
