"""Products without Tensor Cores: time and kernels are both per step."""

from __future__ import annotations

import io
from pathlib import Path

import lightning_perf
from tests.support.trace_builder import TraceBuilder


def test_kernels_are_counted_per_step(tmp_path: Path) -> None:
    builder = TraceBuilder().gpu("Tesla V100-SXM2-16GB", computeMajor=7, computeMinor=0, numSms=80)
    for start in builder.steps(4, 1000):
        builder.op("aten::mm", start + 10, 100, types=["float", "float"], dims=[[64, 64], [64, 64]])
        builder.launch(
            "volta_sgemm_128x64_nn", call_us=start + 20, call_duration_us=5, start_us=start + 50, duration_us=200
        )
    file = io.StringIO()
    lightning_perf.analyze(builder.write(tmp_path / "trace.json")).print(file=file, width=200)
    expected = (
        "Matrix products without Tensor Cores: 200 µs per step in 1 kernel, because the inputs are FP32 and the device "
        "has no TF32, so only 16-bit inputs would use them"
    )
    assert expected in file.getvalue()
