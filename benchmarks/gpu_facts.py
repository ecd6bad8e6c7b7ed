"""Print the facts of a GPU (name, driver, clocks), and its rates of matrix products and copies.

Run as ``python -m benchmarks.gpu_facts facts`` or ``rates [--tiny]``. Prints a table, and writes the figures to the
folder that ``WORK`` names, if it is set.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.options import make_parser
from benchmarks.versions import device_name, known_versions
from lightning_perf.machine.environment import cpu_name
from lightning_perf.machine.hardware import find_device

SIDE, TINY_SIDE = 8192, 256
REPEATS = 10


def machine_facts() -> dict[str, Any]:
    """Return the machine's identity, and the state that may slow it down."""
    facts: dict[str, Any] = {
        "device": device_name(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        **known_versions(),
    }
    if not torch.cuda.is_available():
        return facts
    properties = torch.cuda.get_device_properties(0)
    facts |= {
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "row_of_table": row.name if (row := find_device(properties.name, properties.total_memory)) else None,
    }
    return facts | _nvml_facts(str(properties.uuid))


def _nvml_facts(uuid: str) -> dict[str, Any]:
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception as error:
        return {"nvml": f"{type(error).__name__}: {error}"}
    handle, facts = None, dict[str, Any]()
    for name in (f"GPU-{uuid}", f"MIG-{uuid}"):
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(name)
            facts["nvml_uuid_prefix"] = name.partition("-")[0]
            break
        except Exception as error:
            facts[f"nvml_{name[:3].lower()}_uuid"] = f"{type(error).__name__}: {error}"
    if handle is None:
        return facts

    def violation_ns(policy: int) -> int:
        return int(nvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime)

    def answer(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    questions: dict[str, Callable[[], Any]] = {
        "driver": nvml.nvmlSystemGetDriverVersion,
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "max_sm_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "throttle_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        "violation_power_ns": lambda: violation_ns(nvml.NVML_PERF_POLICY_POWER),
        "violation_thermal_ns": lambda: violation_ns(nvml.NVML_PERF_POLICY_THERMAL),
        "processes": lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
        "energy_mj": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle),
        "mig": lambda: nvml.nvmlDeviceGetMigMode(handle)[0],
    }
    return facts | {name: answer(question) for name, question in questions.items()}


def rates(side: int) -> dict[str, float]:
    """Measure the rate of square products of random matrices, in TFLOP/s, and of a copy, in TB/s.

    Random data, since a GPU multiplies ones or zeros up to 13 % faster.

    Args:
        side: Rows and columns of the matrices.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found: dict[str, float] = {}
    arms = [
        ("fp32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("fp16", torch.float16, False),
        ("bf16", torch.bfloat16, False),
    ]
    for name, dtype, tf32 in arms:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        product = torch.empty_like(left)
        multiply = functools.partial(torch.mm, left, right, out=product)
        found[name] = 2 * side**3 / _best_s(multiply, device) / 1e12
    source = torch.randn(side, side, device=device)
    target = torch.empty_like(source)
    found["copy"] = 2 * source.nbytes / _best_s(lambda: target.copy_(source), device) / 1e12
    return found


def _best_s(call: Callable[[], Any], device: torch.device) -> float:
    """Return the shortest of ten calls, by CUDA events on a GPU."""
    times: list[float] = []
    for _ in range(3):
        call()
    for _ in range(REPEATS):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        else:
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
    return min(times)


def main() -> int:
    """Measure, print, and write."""
    parser = make_parser(__doc__)
    parser.add_argument("what", choices=("facts", "rates"))
    parser.add_argument("--tiny", action="store_true", help="small matrices")
    options = parser.parse_args()
    side = TINY_SIDE if options.tiny else SIDE
    if options.what == "facts":
        found: dict[str, Any] = machine_facts()
        lines = [f"{name:<24} {value}" for name, value in found.items()]
    else:
        found = {"side": side, **rates(side)}
        row = find_device(device_name())
        lines = [f"products of {side} x {side} random matrices, and a copy"]
        for name in ("fp32", "tf32", "fp16", "bf16"):
            peak = f"   {found[name] * 1e12 / row.flops_per_s[name]:.0%} of the table" if row else ""
            lines.append(f"{name:<6} {found[name]:9.2f} TFLOP/s   {found[name] / found['fp32']:5.2f} x FP32{peak}")
        of_table = f"   {found['copy'] * 1e12 / row.bandwidth_bytes_per_s:.0%} of the table" if row else ""
        lines.append(f"copy   {found['copy']:9.2f} TB/s{of_table}")
    print("\n".join(lines))
    if folder := os.environ.get("WORK"):
        (Path(folder) / f"{options.what}.json").write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
