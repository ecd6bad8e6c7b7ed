"""What becomes of a training's worker process is the reason of its trial."""

import sys

import pytest

from lightning_perf.tune.errors import NotApplicableError, NoTrainingError, OutOfTimeError, TrialError, trial_errors
from lightning_perf.tune.messages import Order, Ready, Run, Window
from lightning_perf.workers.process import WorkerProcess
from tests.support.processes import dies


@pytest.fixture
def start():
    """Starts a worker process of ``stubs.py``."""
    workers = []

    def make(stub, folder=""):
        workers.append(WorkerProcess(f"tests.tune.stubs:{stub}", Order("a:b", None, (), 0, False, str(folder))))
        return workers[-1]

    yield make
    for worker in workers:
        worker.kill()


def ready(worker):
    with trial_errors():
        return worker.receive(Ready, timeout_s=60)


def window(worker, timeout_s=60):
    with trial_errors():
        worker.send(Run(7))
        return worker.receive(Window, timeout_s=timeout_s)


def test_losses_that_are_no_numbers_come_through(start):
    worker = start("diverge")
    ready(worker)
    assert repr(window(worker).losses) == "(nan, inf, -inf)"


def test_a_crash_tells_the_signal_and_the_last_lines(start):
    with pytest.raises(TrialError, match=r"crashed with SIGSEGV; last lines: noise \| noise \| last words$"):
        ready(start("crash"))


def test_an_exit_tells_its_code(start):
    with pytest.raises(TrialError, match="ended with exit code 3; it printed nothing"):
        ready(start("leave"))


def test_a_process_that_ends_between_windows(start):
    worker = start("leave_after_ready")
    ready(worker)
    assert dies(worker.pid)
    with pytest.raises(TrialError, match="exit code 5"):
        window(worker)


def test_who_hangs_is_killed_with_its_children(start, tmp_path):
    worker = start("hang", tmp_path / "child")
    ready(worker)
    with pytest.raises(OutOfTimeError, match="longer than the budget allows"):
        window(worker, 0.2)
    assert dies(int((tmp_path / "child").read_text()))
    assert worker.has_ended()


def test_a_killed_process_is_noticed_although_its_paused_children_hold_the_connection(start):
    worker = start("die_beside_a_paused_child")
    ready(worker)
    with pytest.raises(TrialError, match="was killed by SIGKILL"):
        window(worker)


@pytest.mark.parametrize(
    ("stub", "kind"),
    [("not_applicable", NotApplicableError), ("no_training", NoTrainingError), ("broken", TrialError)],
)
def test_failures_are_told_apart(stub, kind, start):
    with pytest.raises(TrialError, match=f"^{stub}$") as caught:
        ready(start(stub))
    assert type(caught.value) is kind


def test_no_process_at_all(monkeypatch, start):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(TrialError, match="its process cannot be started"), trial_errors():
        start("broken")
