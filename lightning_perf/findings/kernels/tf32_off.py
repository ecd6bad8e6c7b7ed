"""The rule for matrix products in FP32 on a device with TF32."""

from __future__ import annotations

from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.findings.finding import Finding, finding
from lightning_perf.findings.kernels.half_precision import device_in_use
from lightning_perf.findings.savings import choose_estimate, counted, device_saving_ns, each, step_ns, worth_it
from lightning_perf.machine.hardware import find_device, is_amd, product_speed_up
from lightning_perf.trace.description import DeviceProperties
from lightning_perf.units import format_duration

__all__ = ["tf32_off"]

DATA_CENTRE = (2.0, 8.8)
OTHERS = (1.0, 2.2)
"""Least and most speed-up of FP32 products by TF32 on devices without a row in `lightning_perf.machine.hardware`,
such as MIG slices and laptop GPUs. Devices of compute capability 8.0, 9.0 and 10.0 have peak rates about 8 times apart
(A100: 156 and 19.5 TFLOP/s), all others at most 2 times."""


def tf32_off(analysis: RankAnalysis) -> Finding | None:
    """Find FP32 matrix products that TF32 would put on Tensor Cores.

    Model: only these products speed up, by at most 1.1 times the ratio of the device's peak rates.
    """
    arithmetic = analysis.arithmetic
    unused = [row for row in arithmetic.eligible_unused if row.reason == "tf32_off"] if arithmetic is not None else []
    if arithmetic is None or not unused:
        return None
    factors = _speed_up(device_in_use(analysis))
    if factors is None:
        return None
    steps = max(arithmetic.steps, 1)
    time_ns = sum(row.time_ns for row in unused) / steps
    low_ns, high_ns = device_saving_ns(analysis, *(time_ns * (1 - 1 / factor) for factor in factors))
    estimate = choose_estimate(
        analysis,
        "tf32",
        (low_ns, high_ns) if worth_it(high_ns, analysis) else None,
        f"These products speed up {factors[0]:.2g} to {factors[1]:.2g} times, by the device's peak rates.",
    )
    if estimate is None:
        return None
    kernels = counted(sum(row.kernels for row in unused) / steps, "kernel")
    operators = ", ".join(unused[0].operators[:3])
    return finding(
        "tf32-off",
        f"TF32 is off: FP32 matrix products take {format_duration(time_ns)} {each(analysis)} without Tensor Cores",
        (f"{kernels} {each(analysis)}, launched by {operators}.",),
        'Allow TF32: Trainer(callbacks=[PerfCallback(tf32="on")]). Without the callback, before training: '
        'torch.set_float32_matmul_precision("high"), and torch.backends.cudnn.allow_tf32 = True for convolutions. It '
        "rounds inputs to 10 bits of mantissa.",
        saving_ns=estimate.saving_ns,
        step_ns=step_ns(analysis),
        model=estimate.model,
        basis=estimate.basis,
        rank=analysis.rank,
    )


def _speed_up(device: DeviceProperties | None) -> tuple[float, float] | None:
    """Return the least and most speed-up on a device, or `None` if it has no TF32."""
    if device is None:
        return OTHERS
    peak = find_device(device.name, device.total_memory_bytes)
    if peak is not None:
        return product_speed_up(peak, "fp32", "tf32")
    data_centre = not is_amd(device.name) and device.compute_minor == 0 and device.compute_major in (8, 9, 10)
    return DATA_CENTRE if data_centre else OTHERS
