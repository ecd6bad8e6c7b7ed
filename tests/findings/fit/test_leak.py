"""The rule for memory that grows, and the analysis below it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lightning_perf.analysis.steps.memory_growth import MemoryGrowth, summarize_growth
from lightning_perf.findings.fit import leak
from lightning_perf.run_files.fit.memory_growth import GrowthRecord, MemorySample, TensorCensus, TensorGroup

MIB = 2**20


def group(count: int, *, size: int = 0, shape: str = "[]", graph: bool = False) -> TensorGroup:
    return TensorGroup(f"Tensor float32 {shape}", "cpu", graph, count, size)


def growth_of(level: Callable[[int], float], *censuses: TensorCensus, steps: int = 400) -> MemoryGrowth:
    samples = tuple(MemorySample(step, int(level(step) * MIB)) for step in range(20, steps, 4))
    found = summarize_growth(GrowthRecord(0, "process", samples, censuses))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("level", "grows"),
    [
        (lambda step: 500, False),
        (lambda step: 500 + 0.1 * step, True),  # 38 MiB over the samples
        (lambda step: 500 + 0.03 * step, False),  # 11 MiB
        (lambda step: 5000 + 0.1 * step, False),  # less than 2 %
        (lambda step: 500 + 100 * (step > 200), False),  # one jump, e.g. a validation
        (lambda step: 500 + 100 * min(step, 250) / 250, False),  # a cache that is full
        (lambda step: 900 - 0.5 * step, False),
        (lambda step: 500 + 0.5 * step + 20 * (step % 8), True),  # two levels in turn
        (lambda step: 500 + 300 * (step // 100), True),  # at the ends of epochs
    ],
)
def test_growth_is_steady_and_large(level: Callable[[int], float], grows: bool) -> None:
    found = growth_of(level)
    assert (found.grows, leak(found) is not None) == (grows, grows)


def test_the_slope_is_that_of_the_leak() -> None:
    found = growth_of(lambda step: 500 + 0.5 * step)
    assert found.bytes_per_step == pytest.approx(0.5 * MIB, rel=1e-3)
    finding = leak(found)
    assert finding is not None
    assert finding.title == "Leak: memory grows by 512 KiB per step"
    assert "were not counted twice" in finding.evidence[1]
    assert (finding.per, finding.saving_high_ms) == ("fit", None)


def test_few_samples_give_nothing() -> None:
    samples = tuple(MemorySample(step, step * 100 * MIB) for step in range(15))
    assert summarize_growth(GrowthRecord(0, "process", samples, ())) is None


def test_the_kind_of_tensor_that_grows() -> None:
    before = TensorCensus(50, (group(10, size=5 * MIB, shape="[128]"), group(7)))
    after = TensorCensus(150, (group(110, size=55 * MIB, shape="[128]"), group(8), group(3, size=9, shape="[9]")))
    found = growth_of(lambda step: 500 + 0.5 * step, before, after)
    assert (found.counted_steps, [(row.kind, row.count, row.bytes) for row in found.tensors]) == (
        100,
        [("Tensor float32 [128]", 100, 50 * MIB), ("Tensor float32 [9]", 3, 9), ("Tensor float32 []", 1, 0)],
    )
    finding = leak(found)
    assert finding is not None
    expected = "In 100 steps, 100 more Tensor float32 [128] on cpu hold 50.0 MiB, 512 KiB per step."
    assert finding.evidence[1] == expected
    assert "clear it in on_train_epoch_end" in finding.action


def test_losses_that_keep_their_graphs() -> None:
    before, after = (TensorCensus(step, (group(step, size=4 * step, graph=True),)) for step in (50, 150))
    finding = leak(growth_of(lambda step: 500 + 0.5 * step, before, after))
    assert finding is not None
    assert "100 more Tensor float32 []" in finding.evidence[1]
    assert "keep their graphs of autograd alive" in finding.evidence[1]
    assert "loss.detach()" in finding.action


def test_growth_outside_of_tensors() -> None:
    before, after = (TensorCensus(step, (group(7, size=100),)) for step in (50, 150))
    finding = leak(growth_of(lambda step: 500 + 0.5 * step, before, after))
    assert finding is not None
    assert "no kind of tensor grew as much" in finding.evidence[1]
