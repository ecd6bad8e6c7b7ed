from __future__ import annotations

import pytest

from lightning_perf.findings.half_precision import half_precision
from tests.findings.recordings import FP32_GEMM, V100, analysis, training


def test_fp32_on_an_a100() -> None:
    finding = half_precision(analysis(training(kernel=FP32_GEMM, dtype="float")))
    assert finding is not None
    assert 'precision="bf16-mixed"' in finding.action
    assert finding.severity == "high"
    # All of 9.98 ms is products, which speed up 2 to 8 times; the host needs 0.5 ms and the device waits 0.3 %.
    assert finding.saving_high_ms == pytest.approx(9.98 * 7 / 8, rel=0.01)
    assert finding.saving_low_ms == pytest.approx(9.52 / 2, rel=0.05)


def test_a_v100_has_no_bf16() -> None:
    finding = half_precision(
        analysis(training(kernel="volta_sgemm_128x64_nn", dtype="float", gpu="Tesla V100-SXM2-16GB", properties=V100))
    )
    assert finding is not None
    assert 'precision="16-mixed"' in finding.action


def test_a_pascal_gains_nothing() -> None:
    properties = {"computeMajor": 6, "computeMinor": 0}
    recorded = training(kernel="maxwell_sgemm_128x64_nn", dtype="float", gpu="Tesla P40", properties=properties)
    assert half_precision(analysis(recorded)) is None


def test_mixed_precision_is_in_use() -> None:
    assert half_precision(analysis(training())) is None
