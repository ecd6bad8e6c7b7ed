from __future__ import annotations

from lightning_perf.findings.ranks import data_parallel
from tests.findings.recordings import analysis, training


def test_data_parallel() -> None:
    assert data_parallel(analysis(training())) is None
    finding = data_parallel(analysis(training().annotation("DataParallel.forward", 30, 100)))
    assert finding is not None
    assert 'strategy="ddp"' in finding.action
