"""The rule for compute without 16-bit arithmetic."""

from __future__ import annotations

import re

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.savings import choose_estimate, each, step_ns, worth_it
from lightning_perf.trace.description import DeviceProperties
from lightning_perf.units import format_duration, format_share

__all__ = [
    "device_in_use",
    "half_precision",
    "has_bf16",
]


def device_in_use(analysis: RankAnalysis) -> DeviceProperties | None:
    """Return the device that the recording used, or the first one that it lists; ``None`` for an empty list."""
    devices = analysis.metadata.devices
    used = {device.ordinal for device in analysis.efficiency.devices} if analysis.efficiency is not None else set()
    return next((device for device in devices if device.ordinal in used), devices[0] if devices else None)


def has_bf16(device: DeviceProperties | None) -> bool:
    """Return whether a device multiplies BF16: NVIDIA from compute capability 8.0 on, AMD Instinct from MI100 on."""
    if device is None:
        return False
    if re.search(r"\bMI\d{3}", device.name or ""):
        return True
    is_amd = re.search(r"AMD|Radeon|Instinct", device.name or "") is not None
    return not is_amd and device.compute_major is not None and device.compute_major >= 8


MAX_HALF_SHARE = 0.10
"""Share of 16-bit compute below which mixed precision is advised, as in XProf."""

UNUSED = ("fp32_inputs", "tf32_off")


def half_precision(analysis: RankAnalysis) -> Finding | None:
    """Find FP32 or TF32 runs that automatic mixed precision would speed up.

    Model: that of `lightning_perf.analysis.precision.amp_gain`.
    """
    arithmetic, gain = analysis.arithmetic, analysis.amp_gain
    if arithmetic is None or not arithmetic.compute_ns or gain is None:
        return None
    steps = max(arithmetic.steps, 1)
    half_ns = arithmetic.row("fp16").time_ns + arithmetic.row("bf16").time_ns
    plain_ns = sum(row.time_ns for row in arithmetic.eligible_unused if row.reason in UNUSED)
    tensor_core_ns = max(0, arithmetic.tensor_core_ns - half_ns)
    full_ns = arithmetic.row("fp32").time_ns + arithmetic.row("tf32").time_ns
    if half_ns / arithmetic.compute_ns >= MAX_HALF_SHARE or not plain_ns + tensor_core_ns:
        return None
    low_ns, high_ns = max(0.0, gain.least_saving_ns), gain.most_saving_ns
    estimate = choose_estimate(
        analysis,
        "bf16" if has_bf16(device_in_use(analysis)) else "fp16",
        (low_ns, high_ns) if worth_it(high_ns, analysis) else None,
        "FP32 products speed up by a factor of at least 2, at most 1.1 times the ratio of the device's peak rates. "
        "TF32 products speed up by 1.2 to 2 (convolutions 4), kernels that read their results by up to 2. Memory, "
        "casts and the host limit the gain.",
    )
    if estimate is None:
        return None
    precision = "bf16-mixed" if has_bf16(device_in_use(analysis)) else "16-mixed"
    products = [
        f"{format_duration(ns / steps)} {each(analysis)} in {where}"
        for ns, where in ((plain_ns, "FP32 without Tensor Cores"), (tensor_core_ns, "FP32 or TF32 on Tensor Cores"))
        if ns
    ]
    return finding(
        "half-precision",
        f"No 16-bit arithmetic: {format_share(full_ns / arithmetic.compute_ns)} of device compute is FP32 or TF32",
        (f"Matrix products and convolutions take {' and '.join(products)}. In 16 bits they run on Tensor Cores.",),
        f'Train in mixed precision: Trainer(precision="{precision}").',
        saving_ns=estimate.saving_ns,
        step_ns=step_ns(analysis),
        model=estimate.model,
        basis=estimate.basis,
        rank=analysis.rank,
    )
