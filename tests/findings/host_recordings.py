"""Recordings of trainings on a processor, with known times."""

from typing import Any

from lightning_perf.trace.description import PROCESSOR_KEY
from tests.support.trace_builder import TraceBuilder

DATA, WEIGHT, OUT = [8, 16, 32, 32], [32, 16, 3, 3], [8, 32, 32, 32]
ACTIVATIONS = 8 * 16 * 32 * 32 + 8 * 32 * 32 * 32
WEIGHTS = 32 * 16 * 3 * 3


def strides(shape: list[int], layout: str) -> list[int]:
    """Strides of a tensor whose channels come first or last."""
    _, c, h, w = shape
    return [c * h * w, h * w, w, 1] if layout == "first" else [c * h * w, 1, w * c, c]


def on_processor(
    *,
    bf16: list[str] | None = None,
    trains: bool = True,
    threads: int = 1,
    load: float = 1.0,
    use: dict[str, float] | None = None,
    **top: Any,
) -> TraceBuilder:
    """An empty recording that tells of its processor, and of the use of its cores."""
    facts = {"name": "A CPU", "cores": 8, "threads": threads, "bf16": bf16, "trains": trains, "load": load}
    return TraceBuilder(**{PROCESSOR_KEY: facts | (use or {})}, **top)


def convolving(
    builder: TraceBuilder,
    *,
    dtype: str = "float",
    layout: str = "first",
    groups: int = 1,
    convolution_us: tuple[float, float] = (3000, 5000),
    pooling_us: float = 1000,
    normalization_us: tuple[float, float] = (400, 500),
    origin_us: float = 0.0,
) -> TraceBuilder:
    """Three steps of a convolution, pooling, normalization and 100 µs of other operators: 10 ms as it stands."""
    weight = [WEIGHT[0], WEIGHT[1] // groups, *WEIGHT[2:]]
    now = origin_us

    def op(name: str, us: float, *shapes: list[int]) -> None:
        nonlocal now
        ordered: dict[str, Any] = {"Input Strides": [strides(shape, layout) for shape in shapes]}
        builder.op(name, now, us, types=[dtype] * len(shapes), dims=list(shapes), **ordered)
        now += us

    for step in range(3):
        begin = now
        builder.op("aten::conv2d", now, 50 + convolution_us[0])  # what calls it has 50 µs of its own
        now += 50
        op("aten::mkldnn_convolution", convolution_us[0], DATA, weight)
        op("aten::max_pool2d_with_indices", pooling_us, OUT)
        op("aten::native_batch_norm", normalization_us[0], OUT)
        op("aten::native_batch_norm_backward", normalization_us[1], OUT, OUT)
        op("aten::convolution_backward", convolution_us[1], OUT, DATA, weight)
        builder.op("aten::add_", now, 50, types=["float"], dims=[[32]])
        now += 50
        builder.step(step, begin, now - begin)
    return builder
