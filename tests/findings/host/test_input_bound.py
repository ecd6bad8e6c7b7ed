from __future__ import annotations

import pytest

from lightning_perf.findings.loading import input_bound
from tests.findings.host_recordings import convolving, on_processor
from tests.findings.recordings import STEP_US, analysis, training
from tests.support.trace_builder import FETCH


def test_in_process_loading() -> None:
    builder = training(fetch_us=2500, loader="_SingleProcessDataLoaderIter")
    for step in range(4):
        builder.memcpy("HtoD", step * 12_500 + 2_600, 10, bytes=1000)
    finding = input_bound(analysis(builder))
    assert finding is not None
    # The last kernel of a step ends within it, so each step waits the whole of its fetch.
    assert finding.saving_high_ms == pytest.approx(2.5, rel=0.01)
    # One copy to the device: a batch of one tensor, which takes at most 1.5 ms and 0.3 ms to receive.
    assert finding.saving_low_ms == 0
    assert "A batch has 1 tensor." in " ".join(finding.evidence)
    assert "Measure before you use worker processes" in finding.action
    assert "num_workers=0" in " ".join(finding.evidence)
    assert "num_workers=4" in finding.action


def test_a_processor_that_trains_itself_waits_with_its_caches_cold() -> None:
    builder = convolving(on_processor())
    for step in range(3):
        builder.annotation(FETCH, step * 10_000 + 100, 4000)
    finding = input_bound(analysis(builder))
    assert finding is not None
    waited_ms = (analysis(builder).breakdown.category("input").mean_ns or 0) / 1e6
    assert 0 < waited_ms <= 4
    assert finding.saving_high_ms == pytest.approx(1.1 * waited_ms)


def test_slow_workers() -> None:
    finding = input_bound(analysis(training(fetch_us=2500)))
    assert finding is not None
    assert finding.action.startswith("Raise num_workers")


def test_twice_the_workers_halve_the_step_at_best() -> None:
    finding = input_bound(analysis(training(fetch_us=30_000)))
    assert finding is not None
    assert finding.saving_high_ms == pytest.approx(20.0, rel=0.01)


@pytest.mark.parametrize(("share", "fires"), [(0.045, False), (0.055, True)])
def test_threshold(share: float, fires: bool) -> None:
    fetch_us = round(STEP_US * share / (1 - share))
    assert (input_bound(analysis(training(fetch_us=fetch_us))) is not None) == fires
