import pytest
import torch

from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.levers.precision import TF32, MixedPrecision
from lightning_perf.tune.training import Training
from tests.tune.trainings import Tiny

CPU = Machine("cpu", None, 2, "a CPU")
VOLTA = Machine("cuda", (7, 0), 2, "V100")
AMPERE = Machine("cuda", (8, 0), 2, "A100")


@pytest.mark.parametrize(
    ("name", "machine", "said"),
    [
        ("bf16-mixed", CPU, None),
        ("bf16-mixed", AMPERE, None),
        ("bf16-mixed", VOLTA, "no bfloat16"),
        ("16-mixed", CPU, "needs a CUDA GPU"),
        ("16-mixed", VOLTA, None),
    ],
)
def test_precision_by_machine(name, machine, said):
    reason = MixedPrecision(name).missing(Training(Tiny()), machine)
    assert reason is None if said is None else said in reason


@pytest.mark.parametrize("precision", ["32-true", "32", 32, None])
def test_full_precision_is_replaced(precision):
    training = Training(Tiny(), None, {"precision": precision})
    lever = MixedPrecision("bf16-mixed")
    assert lever.missing(training, CPU) is None
    assert lever.lines(training) == ('Trainer(precision="bf16-mixed")',)
    lever.apply(training)
    assert training.trainer == {"precision": "bf16-mixed"}


def test_a_precision_of_ones_own_stays():
    assert "16-true" in MixedPrecision("bf16-mixed").missing(Training(Tiny(), None, {"precision": "16-true"}), AMPERE)


def test_tf32():
    training = Training(Tiny())
    assert TF32().missing(training, CPU) == TF32().missing(training, VOLTA) == "needs a CUDA GPU with TF32"
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        assert TF32().missing(training, AMPERE) is None
        TF32().apply(training)
        assert torch.get_float32_matmul_precision() == "high"
        assert TF32().missing(training, AMPERE) == "is on already"
    finally:
        torch.set_float32_matmul_precision(before)
    assert "high" in TF32().lines(training)[0]
