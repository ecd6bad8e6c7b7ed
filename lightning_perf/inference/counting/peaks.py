"""Find the peak rates of this machine's device: in the table of devices, or by measuring."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from lightning_perf.inference.counting.document import Peaks
from lightning_perf.inference.model.subject import cpu_threads, finish
from lightning_perf.machine.environment import cpu_name
from lightning_perf.machine.hardware import find_device

LEAST_WORKING_SET_BYTES = 2**18
"""With fewer bytes, the overhead of the call dominates a copy."""

MOST_WORKING_SET_BYTES = 2**30
"""Larger than every cache: more would only use memory."""

SECONDS = 0.25
"""Duration of each measurement."""

_ARITHMETIC = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}

SEED = 5
"""Seed of the random matrices."""


def find_peaks(
    device: torch.device, threads: int, dtype: torch.dtype = torch.float32, *, working_set_bytes: int = 2**28
) -> Peaks:
    """Return the peak rates of a device, from the table of devices if it has the device, else measured.

    For FP32 on a GPU in the table, the rates follow the process's TF32 settings: PyTorch computes convolutions in TF32
    by default, and matrix products only after ``torch.set_float32_matmul_precision("high")``.

    Args:
        device: The device.
        threads: CPU threads; ignored on a GPU.
        dtype: Type of the arithmetic.
        working_set_bytes: Memory of the model's weights and tensors; ignored if the table has the device.
    """
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        row = find_device(properties.name, properties.total_memory)
        rate = None if row is None else row.flops_per_s.get(_ARITHMETIC[dtype])
        if row is not None and rate is not None:
            name = str(dtype).removeprefix("torch.")
            has_tf32 = dtype == torch.float32 and torch.version.hip is None
            tf32 = row.flops_per_s.get("tf32", rate) if has_tf32 else rate
            backends: Any = torch.backends
            settings = backends.cuda.matmul, backends.cudnn.conv
            product, convolution = (tf32 if setting.fp32_precision == "tf32" else rate for setting in settings)
            return Peaks(
                properties.name,
                name,
                None,
                product,
                row.bandwidth_bytes_per_s,
                row.source,
                convolution_flops_per_s=None if convolution == product else convolution,
            )
    return measure_peaks(device, threads, dtype, working_set_bytes=working_set_bytes)


def measure_peaks(
    device: torch.device, threads: int, dtype: torch.dtype = torch.float32, *, working_set_bytes: int = 2**28
) -> Peaks:
    """Measure the rates that this device reaches, in about a second.

    The rate of arithmetic comes from a large product of random matrices. Constant matrices would be too fast, because
    bits that do not change take no power: an H200 reached 788 TFLOP/s in BF16 on random data and 894 on zeros.

    The bandwidth is the higher one of a copy and a dot product, which only reads. Both use as much memory as the model:
    weights that fit in a cache are read from it in every call but the first.
    """
    working_set = min(max(working_set_bytes, LEAST_WORKING_SET_BYTES), MOST_WORKING_SET_BYTES)
    sides = (8192,) if device.type == "cuda" else (512, 1024)  # short calls more often run without other load
    half = working_set // 2 // dtype.itemsize
    with torch.inference_mode(), cpu_threads(threads):
        random = torch.Generator(device).manual_seed(SEED)  # leaves the process's own generator alone
        rates = {}
        for side in sides:
            left, right, out = (torch.randn(side, side, dtype=dtype, device=device, generator=random) for _ in range(3))
            rates[side] = 2 * side**3 / _best_s(partial(torch.mm, left, right, out=out), device)
        source, target = torch.ones(half, dtype=dtype, device=device), torch.ones(half, dtype=dtype, device=device)
        copy_s = _best_s(lambda: target.copy_(source), device)
        dot_s = _best_s(lambda: torch.dot(source, target), device)
    side = max(rates, key=rates.__getitem__)
    return Peaks(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        dtype=str(dtype).removeprefix("torch."),
        threads=None if device.type == "cuda" else threads,
        flops_per_s=rates[side],
        bandwidth_bytes_per_s=2 * half * dtype.itemsize / min(copy_s, dot_s),
        source=f"measured here: a product of random {side}×{side} matrices; the faster of a copy and a dot product",
    )


def _best_s(call: Callable[[], object], device: torch.device) -> float:
    """Return the shortest time of as many calls as fit into `SECONDS`, at least three after the first."""
    best = float("inf")
    call()
    deadline = time.perf_counter() + SECONDS
    done = 0
    while done < 3 or time.perf_counter() < deadline:
        finish(device)
        began = time.perf_counter()
        call()
        finish(device)
        best = min(best, time.perf_counter() - began)
        done += 1
    return best
