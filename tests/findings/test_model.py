"""Attention, padding and gradient checkpointing, on recordings with known times."""

from typing import Any

import pytest
from msgspec.structs import replace

from lightning_perf.findings.model import attention_math, padding, recompute
from lightning_perf.findings.whole_run import check_findings
from lightning_perf.trace.description import LOADER_KEY, PROCESSOR_KEY, TOKENS_KEY, Processor
from tests.findings.host_recordings import on_processor
from tests.findings.recordings import A100, BF16_GEMM, STEP_US, STEPS, Rule, analysis, finding_of, saving_of, training
from tests.support.trace_builder import TraceBuilder

SHORT_STEP_US = 1000


def attending(
    *, dropout: float = 0.1, times_us: tuple[int, int] = (60, 200), dims: tuple[int, ...] = (2, 4, 64, 32)
) -> TraceBuilder:
    """Three steps on a processor with causal attention: times of its two products and of all else in it."""
    builder = on_processor()
    products_us, others_us = times_us
    (batch, heads, time, size), outer = dims, [[*dims]] * 3
    inner: dict[str, list[list[int]]] = {
        "first": [[batch * heads, time, size], [batch * heads, size, time]],
        "second": [[batch * heads, time, time], [batch * heads, time, size]],
    }
    for step in range(3):
        at = step * SHORT_STEP_US
        builder.step(step, at, SHORT_STEP_US)
        builder.annotation("perf::forward", at, 900)
        length = products_us + others_us + 5
        inputs: dict[str, Any] = {"Concrete Inputs": ["", "", "", "", str(dropout), "True", "", "False"]}
        builder.op("aten::scaled_dot_product_attention", at, length + 5, dims=[*outer, [], [], [], [], []], **inputs)
        builder.op("aten::_scaled_dot_product_attention_math", at + 2, length, types=["float"] * 3, dims=outer)
        builder.op("aten::bmm", at + 3, products_us / 2, dims=inner["first"])
        builder.op("aten::_softmax", at + 4 + products_us / 2, others_us, dims=[[batch, heads, time, time], [], []])
        builder.op("aten::bmm", at + 5 + products_us / 2 + others_us, products_us / 2, dims=inner["second"])
        builder.op("aten::mm", at + 400, 500)
    return builder


def test_products_stay_and_the_rest_is_saved_in_part() -> None:
    found = finding_of(attention_math, attending())
    assert found.title == "Attention without a fused kernel: it takes 26.5 % of the step"
    others_ms, products_ms = 0.205, 0.060
    assert saving_of(found) == pytest.approx((others_ms / 4, others_ms + products_ms / 2))
    assert found.evidence[1] == "The fused kernel of processors has no dropout, and dropout_p is 0.1."
    assert "dropout_p=0.0" in found.action


def attending_on_gpu(
    *, name: str = "aten::_scaled_dot_product_attention_math", size: int = 64, dtype: str = "c10::BFloat16"
) -> TraceBuilder:
    """Four steps of a GPU that computes for 10 ms, of which attention takes 4 ms, outside of products."""
    builder = training(dtype=dtype)
    for step in range(4):
        at = step * 10_020 + 20
        builder.op(name, at + 52, 6, types=[dtype] * 3, dims=[[2, 4, 128, size]] * 3)
        builder.launch("softmax", call_us=at + 53, call_duration_us=2, start_us=at + 100, duration_us=4000, stream=8)
    return builder


@pytest.mark.parametrize(
    ("size", "dtype", "reason"),
    [
        (20, "c10::BFloat16", "The head size of 20 is not a multiple of 8."),
        (20, "float", "Type, head size and dropout, as recorded, do not rule a fused kernel out."),
        (64, "double", "No fused kernel computes in float64."),
    ],
)
def test_reasons_on_a_gpu(size: int, dtype: str, reason: str) -> None:
    found = finding_of(attention_math, attending_on_gpu(size=size, dtype=dtype))
    assert found.evidence[1] == reason


def test_attention_in_the_models_own_code_names_the_function_to_call() -> None:
    builder = attending()
    builder.events = [event for event in builder.events if "scaled_dot_product" not in event["name"]]
    found = finding_of(attention_math, builder)
    assert "The code multiplies" in found.evidence[1]
    assert "scaled_dot_product_attention(query, key, value)." in found.action
    assert "need_weights=False" in found.action
    assert "backward" not in found.evidence[0]
    assert "mask" in found.changes


@pytest.mark.parametrize(
    ("mask", "causal", "dropout", "call"),
    [
        (False, False, 0.0, "(query, key, value)."),
        (None, None, 0.0, "(query, key, value). If your code masks scores, add attn_mask=…"),
        (True, None, 0.0, "(query, key, value, attn_mask=…). Give ~mask for masked_fill(mask, …)"),
        (True, True, 0.0, "(query, key, value, is_causal=True)."),
        (True, True, None, "(query, key, value, is_causal=True, dropout_p=…)."),
    ],
)
def test_the_call_keeps_what_the_code_does(
    mask: bool | None, causal: bool | None, dropout: float | None, call: str
) -> None:
    recorded = analysis(attending())
    assert recorded.attention is not None
    kind = replace(
        recorded.attention.kinds[0],
        implementation="written out", type="c10::BFloat16", keys=64, mask=mask, causal=causal, dropout=dropout,
    )  # fmt: skip
    found = finding_of(attention_math, replace(recorded, attention=replace(recorded.attention, kinds=(kind,))))
    assert f"scaled_dot_product_attention{call}" in found.action
    assert found.evidence[0].startswith("Attention in BF16 with 64 keys takes")


PARTS = {"forward": (0, 300), "backward": (300, 500), "optimizer": (800, 200)}


def padded(share: float, *, beyond: float = 0.0, sampler: str | None = None) -> TraceBuilder:
    """Three steps on a processor: 300 µs of forward, 500 µs of backward and 200 µs of the optimizer."""
    builder = on_processor()
    builder.top_level[LOADER_KEY] = {"kind": "map", "sampler": sampler}
    builder.top_level[TOKENS_KEY] = {
        "steps": 3,
        "tokens": 3000,
        "counted": 2000,
        "padding": round(2000 * share),
        "beyond_longest": round(2000 * beyond),
    }
    for step in range(3):
        builder.step(step, step * SHORT_STEP_US, SHORT_STEP_US)
        for phase, (start_us, duration_us) in PARTS.items():
            builder.annotation(f"perf::{phase}", step * SHORT_STEP_US + start_us, duration_us)
            builder.op("aten::mm", step * SHORT_STEP_US + start_us, duration_us, dims=[[8, 8], [8, 8]])
    return builder


@pytest.mark.parametrize(
    ("share", "beyond", "sampler", "advice"),
    [
        (0.1, 0.0, None, "Pack several sequences into each row, or batch sequences of similar length"),
        (0.1, 0.0, "LengthBuckets", ""),
        (0.4, 0.0, "LengthBuckets", "or let LengthBuckets sort by length within larger buckets"),
        (0.1, 0.1, "LengthBuckets", "Pad each batch to its own longest sequence"),
    ],
)
def test_batches_of_similar_length_have_some_padding(share: float, beyond: float, sampler: Any, advice: str) -> None:
    found = padding(analysis(padded(share, beyond=beyond, sampler=sampler)))
    assert advice in found.action if found is not None else not advice


def test_half_padding_saves_a_quarter_to_a_half_of_forward_and_backward() -> None:
    found = finding_of(padding, padded(0.5))
    assert found.title == "Padding: 50.0 % of the tokens in a batch are padding"
    assert saving_of(found) == pytest.approx((0.25 * 0.8, 0.5 * 0.8))
    assert "About 500 of 1,000 tokens per step" in found.evidence[0]
    assert "Pack several sequences" in found.action
    # Columns that no row needs have a simpler fix.
    simple = finding_of(padding, padded(0.5, beyond=0.4))
    assert "40.0 % of the tokens lie beyond the longest" in simple.evidence[1]
    assert "Pad each batch to its own longest sequence" in simple.action


def test_a_busy_machine_does_not_change_the_number_of_tokens() -> None:
    recorded = analysis(padded(0.5))
    processor = Processor(cores=2, threads=2, cpus=2, machine_cpus=2, load=9.0, core_wait=0.6, trains=True)
    busy = replace(recorded, metadata=replace(recorded.metadata, processor=processor))
    checked = check_findings([finding_of(padding, busy)], [busy], lead=busy)
    assert [finding.kind for finding in checked.findings] == ["padding"]
    assert not checked.held_back


def test_damaged_counts_are_no_padding() -> None:
    builder = padded(0.5)
    builder.top_level[TOKENS_KEY] |= {"padding": 5000}
    model = analysis(builder).language_model
    assert model is not None
    assert model.padding is None
    builder.top_level[TOKENS_KEY] = {"steps": 0, "tokens": -4}
    assert analysis(builder).language_model is None


def repeating(*, share: float = 0.2, used: float = 0.3) -> TraceBuilder:
    """Steps in which a share of the device's time repeats the forward, at a share of its memory."""
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100)
    reserved = round(used * A100["totalGlobalMem"])
    for step in range(STEPS):
        at = step * STEP_US
        repeated_us = share * STEP_US
        builder.step(step, at, 600)
        builder.op("aten::linear", at + 10, 50, sequence=step)
        builder.launch(
            BF16_GEMM, call_us=at + 20, call_duration_us=8, start_us=at + 30, duration_us=9960 - repeated_us
        )  # fmt: skip
        node = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
        builder.op(node, at + 300, 200, sequence=step, forward_thread=1, thread=2000)
        builder.op("aten::linear", at + 310, 50, sequence=100 + step, thread=2000)
        builder.launch(
            BF16_GEMM, call_us=at + 320, call_duration_us=8, start_us=at + 9990 - repeated_us,
            duration_us=repeated_us, thread=2000,
        )  # fmt: skip
        builder.memory(at + 50, 1024, address=step + 1, allocated=reserved // 2, reserved=reserved)
    return builder


def test_repeated_work_with_free_memory_is_found() -> None:
    recorded = analysis(repeating())
    assert recorded.recompute is not None
    assert recorded.recompute.time_ns == STEPS * 2_000_000
    found = finding_of(recompute, recorded)
    low_ms, high_ms = saving_of(found)
    assert 1.0 < high_ms <= 2.0
    assert low_ms <= high_ms / 4 + 0.01
    assert "uses 12.0 GiB of 40.0 GiB, 30.0 %" in found.evidence[0]
    unknown = repeating()
    unknown.events = [event for event in unknown.events if event["name"] != "[memory]"]
    assert analysis(unknown).recompute is not None
    assert recompute(analysis(unknown)) is None


def repeating_on_cpu(share: float = 0.3, **memory: Any) -> TraceBuilder:
    """Steps of 10 ms on a processor in which the backward repeats a share of the forward."""
    builder = TraceBuilder(**{PROCESSOR_KEY: {"name": "A CPU", "cores": 8, "threads": 1, "trains": True} | memory})
    for step, at in enumerate(builder.steps(STEPS, STEP_US)):
        repeated_us = share * STEP_US
        builder.op("aten::linear", at, 3000, sequence=step)
        node = "autograd::engine::evaluate_function: AddmmBackward0"
        builder.op(node, at + 3000, 6000, sequence=step, forward_thread=1)
        builder.op("aten::linear", at + 3100, repeated_us - 100, sequence=100 + step)  # after 100 µs of Python
    return builder


def test_a_processor_with_free_memory() -> None:
    found = finding_of(recompute, repeating_on_cpu(free_bytes=6 * 2**30, used_bytes=2 * 2**30))
    assert saving_of(found) == pytest.approx((0.75, 3.0))
    assert "The training uses 2.00 GiB, and 6.00 GiB are free." in found.evidence[0]
    assert "gradient_checkpointing=False" in found.action
    unknown = finding_of(recompute, repeating_on_cpu())
    assert unknown.saving_low_ms == 0
    assert "does not show how much memory is free" in unknown.evidence[0]


def test_a_backward_that_is_differentiated_repeats_nothing() -> None:
    builder = repeating_on_cpu(0.02)
    for step in range(STEPS):
        at = step * STEP_US
        builder.op("aten::mm", at + 3200, 2000, sequence=200 + step)
        node = "autograd::engine::evaluate_function: MmBackward0"
        builder.op(node, at + 9000, 500, sequence=200 + step, forward_thread=1)
    recorded = analysis(builder)
    assert recorded.workload.second_derivative
    assert recorded.recompute is None


@pytest.mark.parametrize(
    ("rule", "recorded", "fires"),
    [
        (attention_math, attending(times_us=(10, 10)), False),
        (attention_math, training(), False),
        (attention_math, attending_on_gpu(name="aten::_scaled_dot_product_flash_attention"), False),
        (padding, padded(0.03), False),
        (padding, padded(0.04), True),
        (padding, padded(0.0), False),
        (padding, on_processor().step(0, 0, 100), False),  # without counted tokens
        (recompute, repeating(used=0.6), False),
        (recompute, repeating(share=0.02), False),
        (recompute, repeating_on_cpu(free_bytes=2**30, used_bytes=2 * 2**30), False),
        (recompute, repeating_on_cpu(0.02, free_bytes=6 * 2**30, used_bytes=2**30), False),
    ],
)
def test_a_rule_fires_from_its_threshold_on(rule: Rule, recorded: TraceBuilder, fires: bool) -> None:
    assert (rule(analysis(recorded)) is not None) == fires
