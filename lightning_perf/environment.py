"""What a run ran on and with: device, driver, versions, flags. The fingerprint's facts about its surroundings."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = [
    "cpu_name",
    "device_facts",
    "flag_facts",
    "host_notes",
    "version_facts",
]

Facts = dict[str, str | int | float | bool | None]
"""Named facts; names are ``group.name``."""

PACKAGES = ("torch", "torchvision", "lightning", "pytorch-lightning", "numpy", "triton", "lightning-perf")


def version_facts() -> Facts:
    """Versions of Python and of the installed libraries that a training's speed and result depend on.

    Example:
        >>> sorted(version_facts())[:2]
        ['version.lightning', 'version.lightning-perf']
    """
    facts: Facts = {"version.python": platform.python_version()}
    return facts | {f"version.{package}": _version(package) for package in PACKAGES}


def device_facts(device: torch.device) -> Facts:
    """The device a run trains on.

    Args:
        device: The Trainer's root device.

    Returns:
        ``device.type``, ``device.name``, and for CUDA the driver, memory and library versions.
    """
    import torch

    facts: Facts = {"device.type": device.type}
    if device.type != "cuda":
        return facts | {"device.name": cpu_name(), "device.threads": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(device)
    return facts | {
        "device.name": properties.name,
        "device.memory_bytes": properties.total_memory,
        "device.driver": _nvidia_driver(),
        "version.cuda": torch.version.cuda or getattr(torch.version, "hip", None),
        "version.cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        # Data loading runs on the host, so its processor counts also for a run on a GPU.
        "device.host_cpu": cpu_name(),
    }


def flag_facts() -> Facts:
    """Switches of torch that change speed or arithmetic."""
    import torch

    return {
        "flags.tf32_matmul": _tf32(torch.backends.cuda.matmul, "matmul"),
        "flags.tf32_cudnn": _tf32(getattr(torch.backends.cudnn, "conv", None), "cudnn"),
        "flags.cudnn_benchmark": torch.backends.cudnn.benchmark,
        "flags.cudnn_deterministic": torch.backends.cudnn.deterministic,
        "flags.deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
    }


def host_notes() -> Facts:
    """What is worth knowing of the host and need not agree between runs."""
    notes: Facts = {"host": platform.node(), "platform": platform.platform(), "cpus": _usable_cpus()}
    try:
        notes["load_1min"] = round(os.getloadavg()[0], 2)
    except OSError:
        notes["load_1min"] = None
    return notes


def cpu_name() -> str:
    """The processor's model, as the kernel names it.

    Example:
        >>> cpu_name() != ""
        True
    """
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith(("model name", "Model")):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _usable_cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def _nvidia_driver() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # no library, no driver, no permission: each means only that the version is unknown
        return None


def _tf32(backend: Any, which: str) -> str | bool | None:
    """The arithmetic that FP32 operations may use; torch has two generations of this switch and forbids mixing them."""
    import torch

    try:
        setting = getattr(backend, "fp32_precision", None)
        if isinstance(setting, str) and setting != "none":
            return setting
        allowed = torch.backends.cuda.matmul.allow_tf32 if which == "matmul" else torch.backends.cudnn.allow_tf32
        return bool(allowed)
    except RuntimeError:
        return None
