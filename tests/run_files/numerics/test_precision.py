from __future__ import annotations

import msgspec
import pytest

from lightning_perf.analysis.precision.shadow import judge_drift
from lightning_perf.errors import TraceError
from lightning_perf.run_files.numerics.precision import (
    Fp32Arithmetic,
    LayerDrift,
    PrecisionSetting,
    RunPrecision,
    read_precision,
    write_precision,
)


@pytest.mark.parametrize(
    ("device", "matmul", "convolution", "text"),
    [
        (False, True, True, "FP32 is true FP32 (the device has no TF32)"),
        (True, True, True, "FP32 is TF32"),
        (True, False, False, "FP32 is true FP32"),
        (True, False, True, "FP32 is TF32 in convolutions and true FP32 in matrix products"),
        (True, True, False, "FP32 is TF32 in matrix products and true FP32 in convolutions"),
    ],
)
def test_says_which_fp32_it_is(device, matmul, convolution, text):
    fp32 = Fp32Arithmetic(device_has_tf32=device, tf32_matmul=matmul, tf32_convolution=convolution)
    assert str(fp32) == text
    setting = PrecisionSetting("16-mixed", "16-mixed", True, True, ("fc",), fp32)
    assert msgspec.json.decode(msgspec.json.encode(setting), type=PrecisionSetting) == setting


def test_file_of_a_run(tmp_path):
    precision = RunPrecision(PrecisionSetting("32-true", None, False, None, (), Fp32Arithmetic(True, False, True)))
    write_precision(tmp_path, precision)
    assert read_precision(tmp_path / "precision.json") == precision


def test_diverged_losses_are_read_back(tmp_path):
    setting = PrecisionSetting("16-mixed", None, False, True, (), Fp32Arithmetic(True, False, True))
    drift = judge_drift(
        precision="16-mixed",
        mixed_losses=[2.5, float("nan")],
        fp32_losses=[2.5, float("inf")],
        mixed_end=float("nan"),
        fp32_end=2.0,
        seed_ends=[2.0, 2.1, float("inf"), 2.0],
        layers=[LayerDrift("fc", None)],
    )
    assert drift.mixed_losses == (2.5, None)
    assert (drift.mixed_end, drift.drift, drift.expected_low) == (None, None, None)
    precision = RunPrecision(setting, numerics=drift)
    write_precision(tmp_path, precision)
    assert read_precision(tmp_path / "precision.json") == precision


def test_bad_files_say_what_to_do(tmp_path):
    path = tmp_path / "precision.json"
    with pytest.raises(TraceError, match="cannot be read"):
        read_precision(path)
    for content in (b"{", b'{"setting": 1}', b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(TraceError, match=r"is no description of a run's precision.*Remove it"):
            read_precision(path)
