from __future__ import annotations

from lightning_perf.findings.kernels import channels_last
from tests.findings.recordings import analysis, training


def test_layout_changes() -> None:
    for name, fires in (("void cudnn::ops::nchwToNhwcKernel<__half>", True), ("elementwise", False)):
        builder = training()
        for step in range(4):
            at = step * 10_020 + 620
            builder.op("aten::cudnn_convolution", at, 30)
            builder.launch(
                name, call_us=at + 5, call_duration_us=5, start_us=at + 1000, duration_us=800, stream=8
            )  # fmt: skip
        assert (channels_last(analysis(builder)) is not None) == fires
