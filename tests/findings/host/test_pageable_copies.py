from __future__ import annotations

import pytest

from lightning_perf.findings.loading import pageable_copies
from tests.findings.recordings import A100, BF16_GEMM, analysis
from tests.support.trace_builder import TraceBuilder


def copying(copy_us: int, *, pinned: bool) -> TraceBuilder:
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    for correlation, start in enumerate(builder.steps(3, 1000), 10):
        builder.op("aten::copy_", start, copy_us)
        builder.runtime("cudaMemcpyAsync", start, copy_us, correlation)
        builder.memcpy("HtoD", start, copy_us, correlation, bytes=1_000_000, pinned=pinned)
        builder.op("aten::mm", start + copy_us, 50)
        builder.launch(
            BF16_GEMM, call_us=start + copy_us - 5, call_duration_us=5, start_us=start + copy_us,
            duration_us=1000 - copy_us,
        )  # fmt: skip
    return builder


def test_copies_from_pageable_memory() -> None:
    finding = pageable_copies(analysis(copying(100, pinned=False)))
    assert finding is not None
    assert "pin_memory=True" in finding.action
    assert finding.saving_high_ms == pytest.approx(0.1)
    assert "1 copy per step" in finding.evidence[0]
    assert "10.0 GB/s" in finding.evidence[0]


def test_pinned_copies_are_fine() -> None:
    assert pageable_copies(analysis(copying(100, pinned=True))) is None


@pytest.mark.parametrize(("copy_us", "fires"), [(28, False), (32, True)])
def test_threshold_of_3_percent(copy_us: int, fires: bool) -> None:
    assert (pageable_copies(analysis(copying(copy_us, pinned=False))) is not None) == fires
