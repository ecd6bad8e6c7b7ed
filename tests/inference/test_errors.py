"""Whatever goes wrong in a worker process is the reason of a variant's row."""

import pytest

from lightning_perf.inference.errors import InferenceError, VariantError, worker_errors
from lightning_perf.inference.measurement.messages import Built, WorkOrder
from lightning_perf.workers.process import WorkerProcess


@pytest.mark.parametrize(
    ("task", "timeout_s", "said"),
    [
        ("inference.failing_workers:variant", 60, "^it gave 3 rows$"),
        ("inference.failing_workers:library", 60, "^OSError: the disk is gone$"),
        ("workers.tasks:end", 60, r"ended with exit code 3; last lines: noise \| first \| the reason$"),
        ("workers.tasks:kill_itself", 60, r"was killed by SIGKILL \(out of memory\?\)"),
        ("workers.tasks:hang", 0.01, "stopped after 0 s without an answer"),
    ],
)
def test_whatever_ends_it_is_a_reason(task, timeout_s, said):
    order = WorkOrder("", "cpu", 1, "")
    with pytest.raises(VariantError, match=said), worker_errors(), WorkerProcess(f"tests.{task}", order) as worker:
        worker.receive(Built, timeout_s=timeout_s)


def test_a_mistake_of_the_users_is_none():
    with pytest.raises(InferenceError), worker_errors():
        raise InferenceError("no such folder")
