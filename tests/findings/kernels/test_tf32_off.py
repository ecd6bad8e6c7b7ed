from __future__ import annotations

import pytest

from lightning_perf.findings.precision import tf32_off
from tests.findings.recordings import FP32_GEMM, V100, analysis, training


def test_fp32_products_on_an_a100() -> None:
    finding = tf32_off(analysis(training(kernel=FP32_GEMM, dtype="float")))
    assert finding is not None
    assert 'torch.set_float32_matmul_precision("high")' in finding.action
    assert "aten::mm" in finding.evidence[0]
    assert finding.saving_high_ms == pytest.approx(9.98 * (1 - 1 / 8.8), rel=0.01)


H100 = {"computeMajor": 9, "computeMinor": 0, "numSms": 132, "totalGlobalMem": 80 * 2**30}
AMPERE_GRAPHICS = {"computeMajor": 8, "computeMinor": 6, "numSms": 82, "totalGlobalMem": 24 * 2**30}


def test_an_h100_multiplies_8_times_as_fast_in_tf32() -> None:
    """At 8192³ an H100 SXM reaches 52.1 TFLOP/s in FP32 and 416.6 in TF32."""
    finding = tf32_off(
        analysis(training(kernel=FP32_GEMM, dtype="float", gpu="NVIDIA H100 80GB HBM3", properties=H100))
    )
    assert finding is not None
    assert finding.saving_low_ms is not None
    assert finding.saving_high_ms is not None
    saved_ms = 9.98 * (1 - 52.1 / 416.6)
    assert finding.saving_low_ms <= saved_ms <= finding.saving_high_ms
    assert finding.model == "These products speed up 2 to 8.1 times, by the device's peak rates."


@pytest.mark.parametrize(
    "gpu",
    ["NVIDIA A10G", "NVIDIA L40", "NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 5090"],
)
def test_a_device_whose_tf32_is_no_faster_by_its_peaks_is_promised_little(gpu: str) -> None:
    finding = tf32_off(analysis(training(kernel=FP32_GEMM, dtype="float", gpu=gpu, properties=AMPERE_GRAPHICS)))
    assert finding is not None
    assert finding.saving_low_ms == 0
    assert finding.saving_high_ms == pytest.approx(9.98 * (1 - 1 / 1.1), rel=0.02)


@pytest.mark.parametrize(
    ("gpu", "properties", "most"),
    [
        ("NVIDIA A10", AMPERE_GRAPHICS, 1.1 * 62.5 / 31.2),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", H100, 8.8),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", AMPERE_GRAPHICS, 2.2),
        ("AMD Radeon Graphics", H100, 2.2),
    ],
)
def test_the_most_that_other_devices_are_promised(gpu: str, properties: dict[str, int], most: float) -> None:
    finding = tf32_off(analysis(training(kernel=FP32_GEMM, dtype="float", gpu=gpu, properties=properties)))
    assert finding is not None
    assert finding.saving_high_ms == pytest.approx(9.98 * (1 - 1 / most), rel=0.01)


def test_a_device_that_dropped_tf32_is_not_advised_to_use_it() -> None:
    recorded = training(kernel=FP32_GEMM, dtype="float", gpu="AMD Instinct MI355X", properties=H100)
    assert tf32_off(analysis(recorded)) is None


def test_a_v100_has_no_tf32() -> None:
    recorded = training(kernel="volta_sgemm_128x64_nn", dtype="float", gpu="Tesla V100-SXM2-16GB", properties=V100)
    assert tf32_off(analysis(recorded)) is None


def test_16_bit_products_are_not_meant() -> None:
    assert tf32_off(analysis(training())) is None
