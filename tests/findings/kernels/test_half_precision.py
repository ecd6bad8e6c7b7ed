from __future__ import annotations

import pytest

from lightning_perf.findings.precision import half_precision, tf32_off
from tests.findings.recordings import FP32_GEMM, STEP_US, STEPS, V100, analysis, training


def test_fp32_on_an_a100() -> None:
    finding = half_precision(analysis(training(kernel=FP32_GEMM, dtype="float")))
    assert finding is not None
    assert 'precision="bf16-mixed"' in finding.action
    assert finding.severity == "high"
    # All of 9.98 ms is products, which speed up 2 to 17.6 times; the host needs 0.5 ms and the device waits 0.3 %.
    assert finding.saving_high_ms == pytest.approx(9.98 * (1 - 1 / 17.6), rel=0.01)
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


def test_a_loss_that_is_read_in_each_step_keeps_nothing_back() -> None:
    """The host waits in ``.item()`` for as long as the device works, and less with a faster one."""
    plain, reading = training(kernel=FP32_GEMM, dtype="float"), training(kernel=FP32_GEMM, dtype="float")
    for step in range(STEPS):
        end = (step + 1) * (STEP_US + 20)
        start = end - STEP_US + 700
        reading.op("aten::item", start, end - 5 - start).op("aten::_local_scalar_dense", start + 2, end - 9 - start)
        reading.runtime("cudaStreamSynchronize", start + 5, end - 15 - start)
    for rule in (half_precision, tf32_off):
        expected, found = rule(analysis(plain)), rule(analysis(reading))
        assert expected is not None
        assert found is not None
        assert found.saving_high_ms == expected.saving_high_ms
        assert found.saving_low_ms == pytest.approx(expected.saving_low_ms, rel=0.01)


def test_a_queue_that_is_full_keeps_nothing_back() -> None:
    """Of forty launches a step thirty return at once, and ten when the device takes a kernel from the queue."""
    builder = training(kernel=FP32_GEMM, dtype="float")
    for step in range(STEPS):
        start = step * (STEP_US + 20) + 700
        for number in range(40):
            long_us = 900 if number >= 30 else 4
            at = start + 8 * min(number, 30) + 910 * max(0, number - 30)
            builder.op("aten::relu", at, long_us + 2)
            builder.launch("elementwise", call_us=at + 1, call_duration_us=long_us, start_us=at + 1_000, duration_us=1)
    found = half_precision(analysis(builder))
    assert found is not None
    assert found.saving_high_ms == pytest.approx(9.98 * (1 - 1 / 17.6), rel=0.02)
