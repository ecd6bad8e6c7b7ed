from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_perf.callbacks.precision.tf32 import Fp32Flags, read_fp32_arithmetic, set_tf32
from lightning_perf.callbacks.precision_callback import PrecisionCallback
from tests.callbacks.precision_training import fit, make_net

CPU = torch.device("cpu")


def flags() -> tuple[object, ...]:
    cuda: Any = torch.backends.cuda
    cudnn: Any = torch.backends.cudnn
    new = (cuda.matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision)
    return *new, torch.get_float32_matmul_precision(), cudnn.allow_tf32, cuda.matmul.allow_tf32


@pytest.mark.parametrize(("setting", "on"), [("on", True), ("off", False)])
def test_sets_both_and_sets_them_back(setting, on):
    before = flags()
    earlier = set_tf32(setting)
    fp32 = read_fp32_arithmetic(CPU)
    assert (fp32.tf32_matmul, fp32.tf32_convolution) == (on, on)
    # Lightning and torch read the older flags, and these raise if only the newer ones are set.
    assert torch.get_float32_matmul_precision() == ("high" if on else "highest")
    assert torch.backends.cudnn.allow_tf32 is on
    earlier.write()
    assert flags() == before


def test_flags_that_only_the_newer_interface_can_read_come_back():
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError, match="mix of the legacy and new"):
            torch.get_float32_matmul_precision()
        set_tf32("off").write()
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert read_fp32_arithmetic(CPU).tf32_matmul
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_off_also_holds_where_all_of_torch_was_set_to_tf32():
    before = Fp32Flags.read()
    torch.backends.fp32_precision = "tf32"
    try:
        earlier = set_tf32("off")
        cudnn: Any = torch.backends.cudnn
        found = torch.backends.cuda.matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
        assert found == ("ieee", "ieee", "ieee")
        assert cudnn.allow_tf32 is False
        earlier.write()
    finally:
        torch.backends.fp32_precision = "none"
        before.write()


@pytest.mark.parametrize(("setting", "on"), [("on", True), ("off", False), (None, False)])
def test_set_during_a_run_and_shown(tmp_path, setting, on):
    before = flags()
    seen = []
    module = make_net()
    module.on_train_batch_start = lambda *_: seen.append(torch.backends.cuda.matmul.fp32_precision == "tf32")
    callback = PrecisionCallback(tf32=setting)
    fit(tmp_path, callback, module, max_steps=1)
    assert seen == [on]
    assert flags() == before
    assert callback.setting.fp32.tf32_matmul is on
    assert not callback.setting.fp32.device_has_tf32
