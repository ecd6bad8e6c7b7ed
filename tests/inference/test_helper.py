import pytest

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.helper import Helper
from lightning_perf.inference.messages import Built, Time, WorkOrder


@pytest.fixture
def start(tmp_path):
    started = []

    def make(what):
        order = WorkOrder(what, "cpu", 1, "")
        started.append(Helper("tests.inference.helper_tasks", order, tmp_path / "log", threads=1))
        return started[-1]

    yield make
    for helper in started:
        helper.kill()


def test_requests_are_answered_whatever_libraries_print(start, tmp_path):
    helper = start("chat")
    assert helper.receive(Built, 60).seconds == 1.5
    assert helper.ask(Time(batch=1, warmup=0, seconds=2.5, least=0, most=0), Built, 60).seconds == 2.5
    helper.close()
    assert "a library talks" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("what", "timeout_s", "said"),
    [
        ("raise", 60, "OSError: the disk is gone"),
        ("exit", 60, r"ended with exit code 3; its last words: first \| the reason"),
        ("crash", 60, r"crashed with SIGKILL \(out of memory\?\)"),
        ("hang", 0.01, "stopped after 0 s without an answer"),
    ],
)
def test_whatever_ends_it_is_a_reason(what, timeout_s, said, start):
    with pytest.raises(VariantError, match=said):
        start(what).receive(Built, timeout_s)
