"""Matrix products run in full FP32 on a device that has TF32."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import device_saving_ns, each, step_ns, worth_it
from lightning_perf.units import format_count, format_duration

__all__ = ["tf32_off"]

SPEED_UP = (2.0, 5.0)
"""Least and most speed-up of FP32 products by TF32: peak rates are 8 times higher on A100 (156 against 19.5 TFLOP/s,
https://www.nvidia.com/en-us/data-center/a100/), large products get about half of that."""


def tf32_off(analysis: RankAnalysis) -> Finding | None:
    """Find FP32 matrix products that TF32 would put on Tensor Cores.

    Model: they speed up 2 to 5 times, nothing else does.
    """
    arithmetic = analysis.arithmetic
    unused = [row for row in arithmetic.eligible_unused if row.reason == "tf32_off"] if arithmetic is not None else []
    if arithmetic is None or not unused:
        return None
    steps = max(arithmetic.steps, 1)
    time_ns = sum(row.time_ns for row in unused) / steps
    low_ns, high_ns = device_saving_ns(analysis, *(time_ns * (1 - 1 / factor) for factor in SPEED_UP))
    if not worth_it(high_ns, analysis):
        return None
    kernels = format_count(sum(row.kernels for row in unused) / steps)
    operators = ", ".join(unused[0].operators[:3])
    return finding(
        "tf32-off",
        f"TF32 is off: {format_duration(time_ns)} {each(analysis)} of FP32 matrix products run without Tensor Cores",
        (f"{kernels} kernels {each(analysis)}, launched by {operators}.",),
        'Allow TF32: torch.set_float32_matmul_precision("high") before training '
        "(convolutions: torch.backends.cudnn.allow_tf32 = True). Inputs are rounded to 10 bits of mantissa.",
        saving_ns=(low_ns, high_ns),
        step_ns=step_ns(analysis),
        model="The products speed up 2 to 5 times.",
        rank=analysis.rank,
    )
