"""List all runtimes, and find one by name."""

from __future__ import annotations

from difflib import get_close_matches

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.runtimes.base import Runtime
from lightning_perf.inference.runtimes.eager import Bf16, ChannelsLast, ChannelsLastFused, Eager, Fp16
from lightning_perf.inference.runtimes.inductor import AotInductor, Compile, CompileMaxAutotune, CompileReduceOverhead
from lightning_perf.inference.runtimes.onnx_runtimes import (
    OnnxRuntime,
    OnnxRuntimeInt8,
    OnnxRuntimeInt8Dynamic,
    OpenVino,
    OpenVinoInt8,
    TensorRtFp16,
    TensorRtInt8,
)
from lightning_perf.inference.runtimes.torchao_int8 import Int8Pt2e, Int8WeightOnly

RUNTIMES: tuple[Runtime, ...] = (
    Eager(),
    ChannelsLast(),
    ChannelsLastFused(),
    Compile(),
    CompileReduceOverhead(),
    CompileMaxAutotune(),
    AotInductor(),
    Bf16(),
    Fp16(),
    OnnxRuntime(),
    OnnxRuntimeInt8(),
    OnnxRuntimeInt8Dynamic(),
    OpenVino(),
    OpenVinoInt8(),
    Int8Pt2e(),
    Int8WeightOnly(),
    TensorRtFp16(),
    TensorRtInt8(),
)
"""All runtimes, the baseline first."""

RUNTIME_NAMES = tuple(runtime.name for runtime in RUNTIMES)


def find_runtime(name: str) -> Runtime:
    """Find a runtime by its name."""
    if name in RUNTIME_NAMES:
        return RUNTIMES[RUNTIME_NAMES.index(name)]
    near = get_close_matches(name, RUNTIME_NAMES, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise InferenceError(f"Unknown runtime {name!r}. {hint}Choose from {', '.join(RUNTIME_NAMES)}.")
