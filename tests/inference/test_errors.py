"""Whatever goes wrong in a worker process is the reason of a variant's row."""

import pytest

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import InferenceError, VariantError, worker_errors
from lightning_perf.inference.variants.worker import describe_error
from lightning_perf.workers.process import WorkerExitError, WorkerFailureError, WorkerTimeoutError


@pytest.mark.parametrize(
    "error",
    [
        WorkerFailureError("it gave 3 rows", "VariantError"),
        WorkerExitError("was killed by SIGKILL (out of memory?)", -9),
        WorkerTimeoutError("stopped after 0 s without an answer"),
    ],
)
def test_whatever_ends_a_process_is_a_reason(error):
    with pytest.raises(VariantError, match=str(error)[:15]), worker_errors():
        raise error


def test_a_mistake_of_the_users_is_none():
    with pytest.raises(InferenceError), worker_errors():
        raise InferenceError("no such folder")


def test_own_errors_speak_for_themselves_and_others_by_their_cause():
    assert describe_error(VariantError("it gave 3 rows")) == "it gave 3 rows"
    error = RuntimeError("step 1 of 3 failed")
    error.__cause__ = OSError("the disk is gone\nlong report")
    assert describe_error(error) == "OSError: the disk is gone"
    assert reason_of(ValueError("")) == "ValueError"
