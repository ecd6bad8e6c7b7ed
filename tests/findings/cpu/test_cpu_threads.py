from __future__ import annotations

import pytest

from lightning_perf.findings.cpu import cpu_threads
from tests.findings.host_recordings import convolving, on_processor
from tests.findings.recordings import analysis


@pytest.mark.parametrize(("threads", "least"), [(1, 1.6), (2, 1.6), (4, 1.2)])
def test_few_threads_on_eight_cores(threads: int, least: float) -> None:
    finding = cpu_threads(analysis(convolving(on_processor(threads=threads))))
    assert finding is not None
    assert "torch.set_num_threads(8)" in finding.action
    # 9.9 ms of the step are large operators.
    assert finding.saving_low_ms == pytest.approx(9.9 * (1 - 1 / least))
    assert finding.saving_high_ms == pytest.approx(9.9 * (1 - threads / 8))


@pytest.mark.parametrize("threads", [5, 8, 16])
def test_enough_threads(threads: int) -> None:
    assert cpu_threads(analysis(convolving(on_processor(threads=threads)))) is None


@pytest.mark.parametrize(("load", "fires"), [(0.0, True), (5.5, True), (5.7, False), (40.0, False)])
def test_cores_may_be_in_use(load: float, fires: bool) -> None:
    assert (cpu_threads(analysis(convolving(on_processor(threads=1, load=load)))) is not None) == fires


def test_cores_may_be_the_workers() -> None:
    builder = convolving(on_processor(threads=4))
    for step in range(3):
        builder.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", step * 10_000 + 9990, 5)
    finding = cpu_threads(analysis(builder))
    assert finding is not None
    assert finding.saving_low_ms == 0
    assert finding.saving_high_ms == pytest.approx(9.9 / 2, rel=0.01)


def test_cores_may_be_other_ranks() -> None:
    assert cpu_threads(analysis(convolving(on_processor(threads=1)).rank(0, 8, backend="gloo"))) is None


def test_small_operators_are_not_divided() -> None:
    builder = on_processor(threads=1)
    for step in range(3):
        builder.step(step, step * 1000, 1000)
        for number in range(20):
            builder.op("aten::mm", step * 1000 + 50 * number, 45, types=["float"] * 2, dims=[[8, 8]] * 2)
    assert cpu_threads(analysis(builder)) is None


def test_an_unknown_processor_or_a_device() -> None:
    assert cpu_threads(analysis(convolving(on_processor(threads=1, trains=False)))) is None
    assert cpu_threads(analysis(convolving(type(on_processor())()))) is None
