"""Settings of the tuner's process in a trial."""

import pytest
import torch

from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.levers.precision import TF32
from lightning_perf.tune.messages import Window
from lightning_perf.tune.training import Training
from lightning_perf.tune.tuner import TorchFlags
from tests.tune.conversation import converse, order
from tests.tune.trainings import TRAINER, Data, Flagged, Tiny

pytestmark = pytest.mark.filterwarnings("ignore")


def test_flags_of_the_newer_kind_are_read_and_set():
    before = TorchFlags.current()
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()  # what the older kind does with them
        wanted = TorchFlags.current()
        before.set()
        wanted.set()
        assert TorchFlags.current() == wanted
        assert "is on already" in TF32().missing(Training(Tiny()), Machine("cuda", (8, 0), 2, "A100"))
    finally:
        before.set()
    assert TorchFlags.current() == before


def test_flags_of_the_tuners_process_are_set(tmp_path):
    before = TorchFlags.current()
    try:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        prepared = order(Training(Flagged(), Data(), TRAINER), tmp_path)
        before.set()
        assert TorchFlags.current() == before
        assert isinstance(converse(prepared, 1)[1], Window)
    finally:
        before.set()
