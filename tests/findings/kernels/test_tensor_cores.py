from __future__ import annotations

from lightning_perf.findings.precision import tensor_cores
from tests.findings.recordings import analysis, training

PLAIN_HALF_GEMM = "ampere_hgemm_128x64_nn"


def test_uneven_dimensions() -> None:
    finding = tensor_cores(analysis(training(kernel=PLAIN_HALF_GEMM, dtype="c10::Half", dims=1023)))
    assert finding is not None
    assert "multiple" in finding.evidence[0]
    assert "multiples of 8" in finding.action


def test_products_on_tensor_cores_are_fine() -> None:
    assert tensor_cores(analysis(training(dims=1023))) is None
