from __future__ import annotations

from typing import Any

import pytest

from lightning_perf.findings.cpu import cpu_channels_last
from tests.findings.host_recordings import ACTIVATIONS, WEIGHTS, convolving, on_processor
from tests.findings.recordings import A100, analysis
from tests.support.trace_builder import TraceBuilder

LOW_OTHERS_MS = 1 * (1 - 1 / 3) + 0.4 * (1 - 1 / 1.5) + 0.5 * (1 - 1 / 1.2)
HIGH_OTHERS_MS = 1 * (1 - 1 / 14) + 0.4 * (1 - 1 / 4.5) + 0.5 * (1 - 1 / 2.6)


@pytest.mark.parametrize(("dtype", "size"), [("float", 1.0), ("c10::BFloat16", 0.5)])
@pytest.mark.parametrize("threads", [1, 4])
def test_channels_first(dtype: str, size: float, threads: int) -> None:
    finding = cpu_channels_last(analysis(convolving(on_processor(threads=threads), dtype=dtype)))
    assert finding is not None
    assert "model.to(memory_format=torch.channels_last)" in finding.action
    assert "8.00 ms per step in convolutions, 1.00 ms per step in pooling" in finding.evidence[0]
    pace = size * 1e-6 / threads
    assert finding.saving_low_ms == pytest.approx((-0.3 * ACTIVATIONS - 2.2 * WEIGHTS) * pace + LOW_OTHERS_MS)
    assert finding.saving_high_ms == pytest.approx((3.5 * ACTIVATIONS - 1.0 * WEIGHTS) * pace + HIGH_OTHERS_MS)


def test_the_recording_tells_by_itself_whatever_wrote_it() -> None:
    assert cpu_channels_last(analysis(convolving(TraceBuilder()))) is not None


def test_channels_last() -> None:
    assert cpu_channels_last(analysis(convolving(on_processor(), layout="last"))) is None


def test_a_recording_without_strides() -> None:
    builder = convolving(on_processor())
    for event in builder.events:
        event["args"].pop("Input Strides", None)
    assert cpu_channels_last(analysis(builder)) is None


def test_a_training_on_a_device() -> None:
    builder = convolving(TraceBuilder().gpu("NVIDIA A100-SXM4-40GB", **A100))
    assert cpu_channels_last(analysis(builder)) is None
    builder.launch("gemm", call_us=10, call_duration_us=5, start_us=20, duration_us=9000)
    assert cpu_channels_last(analysis(builder)) is None


def test_large_weights_on_few_pixels() -> None:
    builder = on_processor()
    for step in range(3):
        builder.step(step, step * 10_000, 10_000)
        for name, at, shapes in (
            ("aten::mkldnn_convolution", 0, [[2, 512, 2, 2], [512, 512, 3, 3]]),
            ("aten::convolution_backward", 5000, [[2, 512, 2, 2], [2, 512, 2, 2], [512, 512, 3, 3]]),
        ):
            ordered = [[c * h * w, h * w, w, 1] for _, c, h, w in shapes]
            given: dict[str, Any] = {"dims": shapes, "Input Strides": ordered}
            builder.op(name, step * 10_000 + at, 5000, types=["float"] * len(shapes), **given)
    assert cpu_channels_last(analysis(builder)) is None
