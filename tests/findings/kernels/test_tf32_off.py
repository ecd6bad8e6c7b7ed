from __future__ import annotations

import pytest

from lightning_perf.findings.kernels.tf32_off import tf32_off
from tests.findings.recordings import FP32_GEMM, V100, analysis, training


def test_fp32_products_on_an_a100() -> None:
    finding = tf32_off(analysis(training(kernel=FP32_GEMM, dtype="float")))
    assert finding is not None
    assert 'torch.set_float32_matmul_precision("high")' in finding.action
    assert "aten::mm" in finding.evidence[0]
    assert finding.saving_high_ms == pytest.approx(9.98 * 0.8, rel=0.01)


def test_a_v100_has_no_tf32() -> None:
    recorded = training(kernel="volta_sgemm_128x64_nn", dtype="float", gpu="Tesla V100-SXM2-16GB", properties=V100)
    assert tf32_off(analysis(recorded)) is None


def test_16_bit_products_are_not_meant() -> None:
    assert tf32_off(analysis(training())) is None
