"""Documents for the page: hand-made ones with hostile names in every text, and reports of hand-made traces."""

from pathlib import Path
from typing import Any

from lightning_perf.analysis.precision.scales import judge_drift, summarize_loss_scale, tabulate_underflow
from lightning_perf.report.build import build_report
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.numerics.precision import Fp32Arithmetic, PrecisionSetting, RunPrecision
from lightning_perf.run_files.numerics.samples import GradientSample, LayerGradients, NonFinite, ScaleEvent
from tests.support.trace_builder import TraceBuilder

HOSTILE = (
    "<img src=x onerror=\"globalThis.pwned='img'\">"
    "</script><script>globalThis.pwned='script'</script>"
    "<!--<script>'\"`${globalThis.pwned='template'}&lt;b&gt;javascript:pwned()\u202eRTL\nnewline\u2028\U0001f600"
)
"""A name that tries every way out of a text that the page could leave open."""


FIRST_OVERFLOW = (
    ScaleEvent("start", 0, 65536.0, 0, 0),
    ScaleEvent(
        "overflow",
        3,
        32768.0,
        4,
        400_000_000,
        wasted_ns=100_000_000,
        scheduler_steps=1,
        origin=NonFinite("MulBackward0", "net.fc", "model.py:7", True, "inf", "float16", 3.0),
    ),
)
"""A run's loss scale up to its first overflow, which wastes 100 ms."""


def trained_precision() -> RunPrecision:
    """A run with overflows, underflow and a comparison with FP32."""
    events = [
        *FIRST_OVERFLOW,
        ScaleEvent("overflow", 4, 16384.0, 5, 500_000_000, wasted_ns=100_000_000),
        ScaleEvent("growth", 2005, 32768.0, 2006, 200_000_000_000),
        ScaleEvent("end", 2400, 32768.0, 2401, 240_000_000_000),
    ]
    counted = LayerGradients("fp16", 10, 0, -20, (90,))
    sound = LayerGradients("fp16", 10, 0, -4, (50, 40))
    gone = LayerGradients("fp16", 50, 0, -40, ())
    layers = {"layer1.conv1": counted, "layer1.conv2": sound, "fc": gone}
    return RunPrecision(
        PrecisionSetting("16-mixed", "16-mixed", True, True, ("layer4.norm",), Fp32Arithmetic(True, False, True), None),
        summarize_loss_scale(events),
        tabulate_underflow([GradientSample(0, 1024.0, layers, {"fc": counted})]),
        judge_drift(
            precision="16-mixed",
            mixed_losses=[2.0, 1.5, 1.2],
            fp32_losses=[2.0, 1.4, 1.1],
            mixed_end=1.9,
            fp32_end=1.0,
            seed_ends=[1.0, 1.1, 0.9, 1.0],
        ),
    )


def hand_made_report(folder: Path, precision: RunPrecision | None = None) -> PerfReport:
    """The report of a run of two ranks: three steps of 1 ms, compute 400 µs on rank 0, 600 µs on rank 1."""
    paths = []
    for rank, compute_us in ((0, 400), (1, 600)):
        trace = TraceBuilder().rank(rank, 2).gpu("NVIDIA A100", computeMajor=8, computeMinor=0, numSms=108)
        for number in range(3):
            at = 1000 * number
            trace.step(number, at, 1000).op("aten::mm", at + 10, 25).op("aten::add", at + 38, 20)
            trace.launch("gemm", call_us=at + 20, call_duration_us=10, start_us=at + 100, duration_us=compute_us)
            trace.launch(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                call_us=at + 40,
                call_duration_us=5,
                start_us=at + 100 + compute_us,
                duration_us=800 - compute_us,
            )
            trace.memory(at + 15, 4096, allocated=8192, reserved=16384).memory(at + 50, -4096, allocated=4096)
        paths.append(trace.write(folder / f"rank{rank}.1.pt.trace.json"))
    return build_report(paths, precision=precision)


def poisoned(document: Any, block: Any = None) -> Any:
    """A copy of a document, of JSON values, with `HOSTILE` added to every text in it.

    Kinds of blocks, settings and colours of charts, and figures as text are ours.
    """
    if isinstance(document, dict):
        block = document.get("block", block)
        ours = (*SETTINGS, *(["text"] if block in ("figures", "bar") else []))
        return {
            name: value if name in ours and isinstance(value, str) else poisoned(value, block)
            for name, value in document.items()
        }
    if isinstance(document, list):
        return [poisoned(value, block) for value in document]
    return f"{document}{HOSTILE}" if isinstance(document, str) and not document.startswith("--") else document


SETTINGS = (
    *("block", "type", "mode", "shape", "symbol", "xref", "yref", "layer", "dash", "barmode", "boxmode", "orientation"),
    *("rangemode", "fill", "anchor", "xaxis", "yanchor", "autorange", "tickformat", "hoverinfo"),
)
