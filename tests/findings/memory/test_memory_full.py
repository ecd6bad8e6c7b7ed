from __future__ import annotations

import pytest

from lightning_perf.findings.memory import memory_full
from tests.findings.recordings import A100, analysis, training


@pytest.mark.parametrize(("share", "fires"), [(0.94, False), (0.96, True)])
def test_threshold(share: float, fires: bool) -> None:
    reserved = round(share * A100["totalGlobalMem"])
    finding = memory_full(analysis(training().memory(50, 1024, allocated=reserved // 2, reserved=reserved)))
    assert (finding is not None) == fires
    if finding is not None:
        assert "38.4 GiB of 40.0 GiB" in finding.evidence[0]
        assert finding.saving_high_ms is None


def test_the_host_s_memory_is_not_meant() -> None:
    recorded = training().memory(50, 1024, allocated=2**50, device_type=0, device=-1)
    assert memory_full(analysis(recorded)) is None
