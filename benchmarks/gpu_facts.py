"""Print the facts of a GPU (name, driver, clocks), and its rates of matrix products and copies.

Run as ``python -m benchmarks.gpu_facts facts`` or ``rates``. Prints a table, and writes the figures to the
folder that ``WORK`` names, if it is set.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.options import make_parser
from benchmarks.versions import device_name, known_versions
from lightning_perf.inference.counting.count import measure_peaks
from lightning_perf.machine.environment import cpu_name
from lightning_perf.machine.hardware import find_device


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


ARITHMETIC = {
    "fp32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "fp16": (torch.float16, False),
    "bf16": (torch.bfloat16, False),
}
"""The type of products by their name, and whether they may use TF32."""


def rates() -> dict[str, float]:
    """Measure the rate of products of random matrices, in TFLOP/s, and of memory traffic, in TB/s."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found: dict[str, float] = {}
    for name, (dtype, tf32) in ARITHMETIC.items():
        torch.backends.cuda.matmul.allow_tf32 = tf32
        peaks = measure_peaks(device, torch.get_num_threads(), dtype)
        found[name] = peaks.flops_per_s / 1e12
        found["copy"] = max(found.get("copy", 0.0), peaks.bandwidth_bytes_per_s / 1e12)
    return found


def main() -> int:
    """Measure, print, and write."""
    parser = make_parser(__doc__)
    parser.add_argument("what", choices=("facts", "rates"))
    options = parser.parse_args()
    if options.what == "facts":
        found: dict[str, Any] = machine_facts()
        lines = [f"{name:<24} {value}" for name, value in found.items()]
    else:
        found = rates()
        row = find_device(device_name())
        lines = ["products of large random matrices, and the faster of a copy and a dot product"]
        for name in ARITHMETIC:
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
