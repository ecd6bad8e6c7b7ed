"""The rule for attention without a fused kernel, on recordings with known times."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.findings.model import attention_math
from tests.findings.host_recordings import on_processor
from tests.findings.recordings import training
from tests.support.trace_builder import TraceBuilder

STEP_US = 1000


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
        at = step * STEP_US
        builder.step(step, at, STEP_US)
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
    found = attention_math(analyze_rank(attending().build()))
    assert found is not None
    assert found.title == "Attention without a fused kernel: it takes 26.5 % of the step"
    others_ms, products_ms = 0.205, 0.060
    assert found.saving_low_ms == pytest.approx(others_ms / 4)
    assert found.saving_high_ms == pytest.approx(others_ms + products_ms / 2)
    assert found.evidence[1] == "The fused kernel of processors has no dropout, and dropout_p is 0.1."
    assert "dropout_p=0.0" in found.action


def test_short_attention_is_no_finding() -> None:
    assert attention_math(analyze_rank(attending(times_us=(10, 10)).build())) is None


def test_no_attention_is_no_finding() -> None:
    assert attention_math(analyze_rank(training().build())) is None


def on_gpu(
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
    found = attention_math(analyze_rank(on_gpu(size=size, dtype=dtype).build()))
    assert found is not None
    assert found.evidence[1] == reason


def test_a_fused_kernel_is_no_finding() -> None:
    assert attention_math(analyze_rank(on_gpu(name="aten::_scaled_dot_product_flash_attention").build())) is None


def test_attention_in_the_models_own_code_names_the_function_to_call() -> None:
    builder = attending()
    builder.events = [event for event in builder.events if "scaled_dot_product" not in event["name"]]
    found = attention_math(analyze_rank(builder.build()))
    assert found is not None
    assert "The model's own code" in found.evidence[1]
    assert "scaled_dot_product_attention(query, key, value, is_causal=True)" in found.action
