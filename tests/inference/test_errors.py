"""Whatever goes wrong in a worker process is the reason of a variant's row."""

import pytest

from lightning_perf.errors import reason_of
from lightning_perf.inference.errors import InferenceError, VariantError, variant_errors, worker_errors
from lightning_perf.inference.variants.running import describe_error
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


REPORTS = {
    "constraints": (
        """Constraints violated (b)! For more information, run with TORCH_LOGS
  - Not all values of b are valid because it was inferred to be a constant (2).
The following call raised this error:
  File "/home/u/net.py", line 7, in forward
    x.view(2, 3)
The error above occurred when calling torch.export.export. If you would like to view more""",
        ("a constant (2)", "net.py, line 7: x.view(2, 3)"),
    ),
    "an operator": (
        f"No ONNX function found for <OpOverload(op='prims.j0')>. Failure: {'no decompositions ' * 30}registered",
        ("prims.j0", "registered"),
    ),
    "on Windows": (
        """Could not guard on Eq(u0, 1)
The following call raised this error:
  File "C:\\w\\net.py", line 3, in f
    if x:""",
        ("Could not guard", " net.py, line 3: if x:"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("report", REPORTS)
def test_reasons_of_exporters_are_whole(report):
    text, parts = REPORTS[report]
    with pytest.raises(VariantError) as caught, variant_errors("torch.onnx cannot export this model"):
        raise RuntimeError(text)
    said = str(caught.value)
    assert said.startswith("torch.onnx cannot export this model: RuntimeError: ")
    assert all(part in said for part in parts)
    assert "…" not in said
    assert "\n" not in said


def test_a_mistake_of_the_users_is_none():
    with pytest.raises(InferenceError), worker_errors():
        raise InferenceError("no such folder")


def test_own_errors_speak_for_themselves_and_others_by_their_cause():
    assert describe_error(VariantError("it gave 3 rows")) == "it gave 3 rows"
    error = RuntimeError("step 1 of 3 failed")
    error.__cause__ = OSError("the disk is gone\nlong report")
    assert describe_error(error) == "OSError: the disk is gone"
    assert reason_of(ValueError("")) == "ValueError"
