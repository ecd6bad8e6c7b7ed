from __future__ import annotations

import pytest

from lightning_perf.findings.cpu import cpu_bf16
from tests.findings.host_recordings import WEIGHTS, convolving, on_processor
from tests.findings.recordings import analysis


def test_fp32_on_a_processor_with_avx512_bf16() -> None:
    finding = cpu_bf16(analysis(convolving(on_processor(bf16=["avx512_bf16"]))))
    assert finding is not None
    assert finding.severity == "high"
    assert 'precision="bf16-mixed"' in finding.action
    assert "A CPU has avx512_bf16" in finding.evidence[0]
    # 8 ms of products speed up 1.5 to 2.75 times; 2 calls of 80 to 10 µs and the weight's casts, 3 to 0.3 ns each.
    low_ms = 8 * (1 - 1 / 1.5) - 2 * 0.08 - WEIGHTS * 3e-6
    high_ms = 8 * (1 - 1 / 2.75) - 2 * 0.01 - WEIGHTS * 0.3e-6 + 0.9 * (1 - 1 / 2.5)
    assert finding.saving_low_ms == pytest.approx(low_ms)
    assert finding.saving_high_ms == pytest.approx(high_ms)


def test_the_fastest_instruction_counts() -> None:
    slow, fast = (
        cpu_bf16(analysis(convolving(on_processor(bf16=flags))))
        for flags in (["avx512_bf16"], ["amx_bf16", "avx512_bf16"])
    )
    assert slow is not None
    assert fast is not None
    assert "amx_bf16" in fast.evidence[0]
    assert (fast.saving_high_ms or 0) > (slow.saving_high_ms or 0)
    assert fast.saving_low_ms == slow.saving_low_ms


@pytest.mark.parametrize("flags", [[], None, ["something_new"]])
def test_a_processor_without_it_or_unknown(flags: list[str] | None) -> None:
    assert cpu_bf16(analysis(convolving(on_processor(bf16=flags)))) is None


def test_bfloat16_is_in_use() -> None:
    assert cpu_bf16(analysis(convolving(on_processor(bf16=["avx512_bf16"]), dtype="c10::BFloat16"))) is None


def test_a_recording_without_input_types() -> None:
    builder = convolving(on_processor(bf16=["avx512_bf16"]))
    for event in builder.events:
        event["args"].pop("Input type", None)
    assert cpu_bf16(analysis(builder)) is None


def test_a_training_on_a_device_whose_work_was_not_recorded() -> None:
    assert cpu_bf16(analysis(convolving(on_processor(bf16=["avx512_bf16"], trains=False)))) is None


def test_grouped_convolutions_may_get_slower() -> None:
    assert cpu_bf16(analysis(convolving(on_processor(bf16=["avx512_bf16"]), groups=16))) is None


def tiny_products(us: float) -> float | None:
    builder = on_processor(bf16=["avx512_bf16"])
    for step in range(3):
        builder.step(step, step * 1000, 1000)
        for number in range(10):
            builder.op("aten::mm", step * 1000 + 100 * number, us, types=["float"] * 2, dims=[[8, 8]] * 2)
    finding = cpu_bf16(analysis(builder))
    return finding.saving_low_ms if finding is not None else None


def test_tiny_products_are_not_worth_their_casts() -> None:
    assert tiny_products(99) is None  # a call saves a third of 99 µs at least, and costs up to 80


def linear_layer(elements: int) -> float | None:
    """The least saving of a linear layer that computes for 9 ms a step, with a weight of so many elements."""
    builder = on_processor(bf16=["avx512_bf16"])
    rows = elements // 4096
    for start in builder.steps(3, 10_000):
        builder.op("aten::linear", start, 9100, types=["float"] * 3, dims=[[4, 4096], [rows, 4096], [rows]])
        builder.op("aten::addmm", start + 50, 9000, types=["float"] * 3, dims=[[rows], [4, 4096], [4096, rows]])
    finding = cpu_bf16(analysis(builder))
    return finding.saving_low_ms if finding is not None else None


def test_large_weights_are_not_worth_their_casts() -> None:
    # 16.8 million elements at up to 3 ns are more than any speed-up of 9 ms.
    assert linear_layer(4096 * 4096) is None


def test_a_linear_layer_and_the_product_that_it_calls_count_once() -> None:
    # 9.1 ms save a third at least; one call costs up to 80 µs, half a million elements up to 3 ns each.
    assert linear_layer(128 * 4096) == pytest.approx(9.1 / 3 - 0.08 - 128 * 4096 * 3e-6)


def attending(queries: int) -> float | None:
    """The least saving of a step with 6 ms of products and 4 ms of attention."""
    builder = on_processor(bf16=["avx512_bf16"])
    attention = "aten::_scaled_dot_product_flash_attention_for_cpu"
    for start in builder.steps(3, 10_000):
        builder.op("aten::mm", start, 6000, types=["float"] * 2, dims=[[8, 8]] * 2)
        for name, at, us in ((attention, 6000, 1500), (f"{attention}_backward", 7500, 2500)):
            dims = [[2, 4, queries, 64]] * 3
            builder.op(name, start + at, us, types=["float"] * 3, dims=dims)
    finding = cpu_bf16(analysis(builder))
    return finding.saving_low_ms if finding is not None else None


def test_attention_of_short_sequences_may_take_what_products_save() -> None:
    assert attending(511) is None
    assert attending(512) == pytest.approx(6 / 3 - 0.08 - 4 * (1 / 0.85 - 1))
