"""Peak rates of the device at hand: from the table of devices, or measured."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from lightning_perf.environment import cpu_name
from lightning_perf.hardware import find_device
from lightning_perf.inference.counting.roofline import Peaks
from lightning_perf.inference.model.subject import cpu_threads

__all__ = ["find_peaks", "measure_peaks"]

LEAST_WORKING_SET_BYTES = 2**18
"""Below this a copy is mostly the call itself."""

MOST_WORKING_SET_BYTES = 2**30
"""Beyond every cache: more would only take memory."""

SECONDS = 0.25
"""Of each of the three measurements."""

_ARITHMETIC = {
    # Convolutions in float32 use TF32 where the device has it, unless switched off.
    torch.float32: ("tf32", "fp32"),
    torch.float16: ("fp16",),
    torch.bfloat16: ("bf16",),
    torch.float64: ("fp64",),
}


def find_peaks(
    device: torch.device, threads: int, dtype: torch.dtype = torch.float32, *, working_set_bytes: int = 2**28
) -> Peaks:
    """Peak rates by the table of devices where it has this one, else measured.

    Args:
        device: The device.
        threads: CPU threads; of no effect on a GPU.
        dtype: Arithmetic.
        working_set_bytes: Memory that the model's weights and tensors take; of no effect where the table has the
            device.
    """
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        row = find_device(properties.name, properties.total_memory)
        rates = [] if row is None else [row.flops_per_s[a] for a in _ARITHMETIC[dtype] if a in row.flops_per_s]
        if row is not None and rates:
            name = str(dtype).removeprefix("torch.")
            return Peaks(properties.name, name, None, max(rates), row.bandwidth_bytes_per_s, row.source)
    return measure_peaks(device, threads, dtype, working_set_bytes=working_set_bytes)


def measure_peaks(
    device: torch.device, threads: int, dtype: torch.dtype = torch.float32, *, working_set_bytes: int = 2**28
) -> Peaks:
    """Measure what this device reaches, in about a second.

    The rate of arithmetic is that of a large matrix product. The bandwidth is the better one of a copy and of a dot
    product, which only reads, over as much memory as the model takes: weights that fit in a cache are read from there
    in every call but the first.

    Args:
        device: The device.
        threads: CPU threads; of no effect on a GPU.
        dtype: Arithmetic.
        working_set_bytes: Memory that the model's weights and tensors take.

    Returns:
        The best of several repetitions each: noise only ever slows down.
    """
    working_set = min(max(working_set_bytes, LEAST_WORKING_SET_BYTES), MOST_WORKING_SET_BYTES)
    side = 8192 if device.type == "cuda" else 1024
    half = working_set // 2 // dtype.itemsize
    with torch.inference_mode(), cpu_threads(threads):
        left, right, product = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(3))
        product_s = _best_s(lambda: torch.mm(left, right, out=product), device)
        source, target = torch.ones(half, dtype=dtype, device=device), torch.ones(half, dtype=dtype, device=device)
        copy_s = _best_s(lambda: target.copy_(source), device)
        dot_s = _best_s(lambda: torch.dot(source, target), device)
    return Peaks(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        dtype=str(dtype).removeprefix("torch."),
        threads=None if device.type == "cuda" else threads,
        flops_per_s=2 * side**3 / product_s,
        bandwidth_bytes_per_s=2 * half * dtype.itemsize / min(copy_s, dot_s),
        source=f"measured here: a {side}×{side} matrix product; the better one of a copy and a dot product",
    )


def _best_s(call: Callable[[], object], device: torch.device) -> float:
    """The shortest of as many calls as fit in the time, at least three after the first."""
    best = float("inf")
    call()
    deadline = time.perf_counter() + SECONDS
    done = 0
    while done < 3 or time.perf_counter() < deadline:
        _finish(device)
        began = time.perf_counter()
        call()
        _finish(device)
        best = min(best, time.perf_counter() - began)
        done += 1
    return best


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
