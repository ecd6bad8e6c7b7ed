from __future__ import annotations

import pytest

from lightning_perf.findings.cpu import cpu_overhead
from lightning_perf.trace.metadata import LOADER_KEY
from tests.findings.host_recordings import on_processor
from tests.findings.recordings import analysis
from tests.support.trace_builder import FETCH, TraceBuilder


def calling(operator_us: float, every_us: float, *, builder: TraceBuilder | None = None) -> TraceBuilder:
    """Steps of 2 ms of operators at even distances."""
    builder = builder or on_processor()
    for start in builder.steps(3, 2000):
        for number in range(int(2000 / every_us)):
            builder.op("aten::add", start + every_us * number, operator_us)
    return builder


def test_short_operators_and_the_python_between_them() -> None:
    finding = cpu_overhead(analysis(calling(5, 20)))
    assert finding is not None
    assert "batch_size" in finding.action
    assert "100 of 100 operators per step are shorter than 10 µs, 500 µs together" in finding.evidence[0]
    assert "take 1.50 ms" in finding.evidence[0]
    assert finding.saving_low_ms == pytest.approx(0.3 * 2)
    assert finding.saving_high_ms == pytest.approx(0.75 * 2)


def test_operators_that_compute() -> None:
    assert cpu_overhead(analysis(calling(15, 20))) is None


@pytest.mark.parametrize(("operator_us", "fires"), [(57, True), (63, False)])
def test_from_40_percent_of_the_step_on(operator_us: float, fires: bool) -> None:
    assert (cpu_overhead(analysis(calling(operator_us, 100))) is not None) == fires


def test_waiting_is_not_calling() -> None:
    builder = on_processor()
    for step in range(3):
        builder.step(step, step * 10_000, 10_000).op("aten::add", step * 10_000, 100)  # and 9.9 ms of nothing
    assert cpu_overhead(analysis(builder)) is None


def test_fetching_is_not_calling() -> None:
    builder = on_processor()
    for start in builder.steps(3, 1000):
        builder.op("aten::mm", start + 600, 400)
        builder.annotation(FETCH, start, 600)
    assert cpu_overhead(analysis(builder)) is None


def test_a_training_on_a_device() -> None:
    assert cpu_overhead(analysis(calling(5, 20, builder=on_processor(trains=False)))) is None
    with_device = calling(5, 20).launch("gemm", call_us=1, call_duration_us=2, start_us=4, duration_us=1900)
    assert cpu_overhead(analysis(with_device)) is None


def test_a_recording_that_does_not_tell_what_trains() -> None:
    assert cpu_overhead(analysis(calling(5, 20, builder=TraceBuilder()))) is None


def of_batches(batches: int | None) -> TraceBuilder:
    """An empty recording of a training with some batches per epoch."""
    builder = on_processor()
    builder.top_level[LOADER_KEY] = {"kind": "map", "batches_per_epoch": batches}
    return builder


def test_a_batch_that_is_the_whole_data_set_does_not_grow() -> None:
    def overhead(batches: int | None) -> tuple[str, str, float | None]:
        builder = of_batches(batches)
        finding = cpu_overhead(analysis(calling(5, 20, builder=builder)))
        assert finding is not None
        return finding.action, " ".join(finding.evidence), finding.saving_low_ms

    action, evidence, low_ms = overhead(1)
    assert action == "Merge operators: model = torch.compile(model). lightning-perf tune measures it."
    assert "the whole data set" in evidence
    assert low_ms == 0
    action, evidence, low_ms = overhead(2)
    assert "raise batch_size" in action
    assert "more than one batch" not in evidence
    action, evidence, low_ms = overhead(None)
    assert "raise batch_size" in action
    assert "does not show whether the data set has more than one batch" in evidence


@pytest.mark.parametrize("batches", [1, 100])
def test_a_compiled_model_is_not_to_be_compiled(batches: int) -> None:
    builder = of_batches(batches)
    builder.op("Torch-Compiled Region: 0/0", 0, 2000).op("Torch-Compiled Region: 0/0", 2000, 2000)
    finding = cpu_overhead(analysis(calling(5, 20, builder=builder)))
    assert (finding is None) == (batches == 1)  # nothing is left to advise
    if finding is not None:
        assert "torch.compile" not in finding.action
        assert "The model is compiled already." in finding.evidence
