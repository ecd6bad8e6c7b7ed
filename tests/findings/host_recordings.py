"""Recordings of trainings on a processor, with known times."""

from __future__ import annotations

from typing import Any

from lightning_perf.trace.metadata import PROCESSOR_KEY
from tests.support.trace_builder import TraceBuilder

STEP_US = 10_000
DATA, WEIGHT, OUT = [8, 16, 32, 32], [32, 16, 3, 3], [8, 32, 32, 32]
ACTIVATIONS = 8 * 16 * 32 * 32 + 8 * 32 * 32 * 32
WEIGHTS = 32 * 16 * 3 * 3


def strides(shape: list[int], layout: str) -> list[int]:
    """Strides of a tensor whose channels come first or last."""
    _, c, h, w = shape
    return [c * h * w, h * w, w, 1] if layout == "first" else [c * h * w, 1, w * c, c]


def on_processor(
    *, bf16: list[str] | None = None, trains: bool = True, threads: int = 1, load: float = 1.0, **top: Any
) -> TraceBuilder:
    """An empty recording that tells of its processor."""
    facts = {"name": "A CPU", "cores": 8, "threads": threads, "bf16": bf16, "trains": trains, "load": load}
    return TraceBuilder(**{PROCESSOR_KEY: facts}, **top)


def convolving(
    builder: TraceBuilder, *, dtype: str = "float", layout: str = "first", groups: int = 1, steps: int = 3
) -> TraceBuilder:
    """Steps of 10 ms: a convolution 3 ms forward and 5 ms backward, pooling 1 ms, normalization 0.4 and 0.5 ms."""
    weight = [WEIGHT[0], WEIGHT[1] // groups, *WEIGHT[2:]]

    def op(name: str, at: float, us: float, *shapes: list[int]) -> None:
        builder.op(
            name, at, us, types=[dtype] * len(shapes), dims=list(shapes),
            **{"Input Strides": [strides(shape, layout) for shape in shapes]},
        )  # fmt: skip

    for step in range(steps):
        start = step * STEP_US
        builder.step(step, start, STEP_US)
        builder.op("aten::conv2d", start, 3050)  # what calls it has 50 µs of its own
        op("aten::mkldnn_convolution", start + 50, 3000, DATA, weight)
        op("aten::max_pool2d_with_indices", start + 3050, 1000, OUT)
        op("aten::native_batch_norm", start + 4050, 400, OUT)
        op("aten::native_batch_norm_backward", start + 4450, 500, OUT, OUT)
        op("aten::convolution_backward", start + 4950, 5000, OUT, DATA, weight)
        builder.op("aten::add_", start + 9950, 50, types=["float"], dims=[[32]])
    return builder
