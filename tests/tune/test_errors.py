"""What becomes of a training's worker process is the reason of its trial."""

import pytest

from lightning_perf.tune.errors import (
    NotApplicableError,
    NoTrainingError,
    OutOfTimeError,
    TrialError,
    describe_error,
    trial_errors,
)
from lightning_perf.workers.process import WorkerExitError, WorkerFailureError, WorkerTimeoutError


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (WorkerFailureError("no fused form", "NotApplicableError"), NotApplicableError, "no fused form"),
        (WorkerFailureError("no module a", "NoTrainingError"), NoTrainingError, "no module a"),
        (WorkerFailureError("ValueError: a", "ValueError"), TrialError, "ValueError: a"),
        (WorkerExitError("it crashed with SIGSEGV", -11), TrialError, "it crashed with SIGSEGV"),
        (WorkerTimeoutError("stopped after 5 s"), OutOfTimeError, "it took longer than the budget allows"),
    ],
)
def test_failures_are_told_apart(error, kind, said):
    with pytest.raises(TrialError, match=f"^{said}$") as caught, trial_errors():
        raise error
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError(""), "RuntimeError"),
        (TrialError("broken"), "broken"),
        (RuntimeError("CUDA out of memory.\nTried"), "RuntimeError: CUDA out of memory."),
        (
            RuntimeError("backend=x raised:\n\n  ImportError: no g++\nmore"),
            "RuntimeError: backend=x raised: ImportError: no g++",
        ),
        (ValueError("x" * 999), f"ValueError: {287 * 'x'}…"),
    ],
)
def test_a_reason_is_one_line_that_tells(error, said):
    assert describe_error(error) == said
