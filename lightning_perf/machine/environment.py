"""The environment of a run: device, driver, versions, flags. The fingerprint includes these facts."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_perf.workers.limits import usable_cpus

if TYPE_CHECKING:
    import torch

CPUINFO = Path("/proc/cpuinfo")

Facts = dict[str, str | int | float | bool | None]
"""Named facts. Names are ``group.name``."""

VARIABLES = (
    "ATEN_CPU_CAPABILITY", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING",
    "GLIBC_TUNABLES", "LD_PRELOAD", "NVIDIA_TF32_OVERRIDE", "THP_MEM_ALLOC_ENABLE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_COMPILE_DISABLE",
)  # fmt: skip
VARIABLE_GROUPS = (
    "CUBLAS_", "CUDNN_", "DNNL_", "GOMP_", "KMP_", "MALLOC_", "MKL_", "NCCL_", "OMP_", "ONEDNN_", "PYTORCH_",
    "TORCHDYNAMO_", "TORCHINDUCTOR_", "TORCH_NCCL_",
)  # fmt: skip
"""Environment variables, by name and by prefix, that set how fast or how exactly the libraries under torch work. The
sources are the documentation of CUDA, cuBLAS, cuDNN, NCCL, oneDNN, MKL, OpenMP, glibc and torch."""

DEBUG_VARIABLES = (
    "CUDA_LAUNCH_BLOCKING", "NCCL_DEBUG", "PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING",
    "TORCH_CPP_LOG_LEVEL", "TORCH_DISTRIBUTED_DEBUG", "TORCH_SHOW_CPP_STACKTRACES",
)  # fmt: skip
"""Environment variables that help to debug and cost time. Recordings note them."""
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables with the settings of torch's allocator. The first one that is set counts."""

PLACES = ("_DIR", "_FILE", "_PATH")
"""Ends of the names of variables that only hold an output path."""

PACKAGES = (
    "torch", "torchvision", "lightning", "pytorch-lightning", "numpy", "triton", "lightning-perf", "accelerate",
    "albumentations", "apex", "bitsandbytes", "datasets", "deepspeed", "diffusers", "flash-attn", "kornia",
    "liger-kernel", "monai", "opencv-python", "opencv-python-headless", "peft", "pillow", "pillow-simd", "timm",
    "tokenizers", "torch-geometric", "torchao", "torchaudio", "torchdata", "torchmetrics", "transformer-engine",
    "transformers", "webdataset", "xformers",
)  # fmt: skip
"""Packages that affect a training's speed or result, if they are installed."""


def version_facts() -> Facts:
    """Return versions of Python and of the installed libraries that affect a training's speed and result."""
    facts: Facts = {"version.python": platform.python_version()}
    return facts | {f"version.{package}": _version(package) for package in PACKAGES}


def variable_facts() -> Facts:
    """Return the environment variables that change speed or arithmetic, ``env.…``, if they are set."""
    return {
        f"env.{name}": value
        for name, value in sorted(os.environ.items())
        if (name in VARIABLES or name.startswith(VARIABLE_GROUPS)) and not name.endswith(PLACES)
    }


def device_facts(device: torch.device) -> Facts:
    """Describe the device that a run trains on.

    Returns:
        ``device.type``, ``device.name``, the processors that the process may use. For CUDA also the driver, memory,
        power limit and library versions, otherwise the threads and the switches of oneDNN.
    """
    import torch

    facts: Facts = {"device.type": device.type, "device.host_cpus": usable_cpus()}
    if device.type != "cuda":
        mkldnn: Any = torch.backends.mkldnn
        return facts | {
            "device.name": cpu_name(),
            "device.threads": torch.get_num_threads(),
            "flags.mkldnn": getattr(mkldnn, "enabled", None),
            "flags.mkldnn_matmul": _fp32_arithmetic(mkldnn.matmul),
        }
    properties = torch.cuda.get_device_properties(device)
    uuid = nvml_uuid(properties)
    return facts | {
        "device.name": properties.name,
        "device.kind": uuid.partition("-")[0],
        "device.memory_bytes": properties.total_memory,
        "device.driver": _ask_nvml(lambda nvml: str(nvml.nvmlSystemGetDriverVersion())),
        "device.power_limit_w": _ask_nvml(
            lambda nvml: nvml.nvmlDeviceGetEnforcedPowerLimit(nvml.nvmlDeviceGetHandleByUUID(uuid)) / 1000
        ),
        "version.cuda": torch.version.cuda or getattr(torch.version, "hip", None),
        "version.cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        # Data loading runs on the host, so its processor counts also for a run on a GPU.
        "device.host_cpu": cpu_name(),
    }


def nvml_uuid(properties: Any) -> str:
    """Return the unique name by which NVML finds a device: ``GPU-…``, or ``MIG-…`` for a part of a GPU."""
    is_part = "MIG" in properties.name or os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-")
    return f"{'MIG' if is_part else 'GPU'}-{properties.uuid}"


def flag_facts() -> Facts:
    """Return the switches of torch that change speed or arithmetic."""
    import torch

    cuda: Any = torch.backends.cuda
    cudnn: Any = torch.backends.cudnn
    return {
        "flags.tf32_matmul": _fp32_arithmetic(cuda.matmul, lambda: cuda.matmul.allow_tf32),
        "flags.tf32_cudnn": _fp32_arithmetic(cudnn.conv, lambda: cudnn.allow_tf32),
        "flags.cudnn_benchmark": cudnn.benchmark,
        "flags.cudnn_deterministic": cudnn.deterministic,
        "flags.deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "flags.cudnn_enabled": cudnn.enabled,
        "flags.detect_anomaly": torch.is_anomaly_enabled(),
        "flags.matmul_reduction": _joined(
            torch.backends.cuda.matmul,
            "allow_fp16_reduced_precision_reduction",
            "allow_bf16_reduced_precision_reduction",
            "allow_fp16_accumulation",
        ),
        "flags.attention": _attention(torch.backends.cuda),
    }


def setting_facts() -> dict[str, object]:
    """Return a recording's facts about the settings of torch (`lightning_perf.trace.description.Settings`)."""
    import torch

    return {
        "detect_anomaly": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "variables": [f"{name}={os.environ[name]}" for name in DEBUG_VARIABLES if name in os.environ],
    }


def host_facts() -> Facts:
    """Describe the machine. Runs of two machines are not comparable, even with the same device.

    Returns:
        ``host.name``, ``host.kernel``, ``host.cpu``, its number of processors and cache, a hash over the processor's
        instruction sets, and the limits of the control group (container) on processors and memory.
    """
    of_cpu = cpu_info()
    names = " ".join(sorted((of_cpu.get("flags") or of_cpu.get("Features") or "").split()))
    return {
        "host.name": platform.node(),
        "host.kernel": platform.release(),
        "host.cpu": cpu_name(),
        "host.cpus": os.cpu_count(),
        "host.cache": of_cpu.get("cache size"),
        "host.cpu_flags": hashlib.blake2b(names.encode(), digest_size=8).hexdigest() if names else None,
        "host.cpu_limit": _cgroup("cpu.max"),
        "host.memory_limit": _cgroup("memory.max"),
    }


def host_notes() -> Facts:
    """Return facts about the host that are worth knowing and may differ between runs."""
    return {"host": platform.node(), "platform": _platform(), "cpus": usable_cpus(), "load_1min": load_average()}


def load_average() -> float | None:
    """Return the load average of the last minute; None if the system has none."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):  # Windows, or a sandbox
        return None


def _platform() -> str:
    """Return the name of the system as `platform.platform` does, but without a process.

    It starts ``uname -p``. Every new process makes Python repeat all warnings that it shows only once.
    """
    if sys.platform != "linux":
        return platform.platform()
    system = os.uname()
    return "-".join((system.sysname, system.release, system.machine, "with", "".join(platform.libc_ver())))


def _cgroup(name: str) -> str | None:
    try:
        return (Path("/sys/fs/cgroup") / name).read_text().strip()
    except OSError:
        return None


def cpu_info() -> dict[str, str]:
    """Return the kernel's facts about the first processor; none where it lists no processors."""
    facts = {}
    with suppress(OSError), CPUINFO.open(encoding="utf-8", errors="replace") as lines:
        for line in takewhile(str.strip, lines):  # a large machine's list is long
            name, _, value = line.partition(":")
            facts[name.strip()] = value.strip()
    return facts


def cpu_name() -> str:
    """Return the processor's model, as the kernel names it.

    Example:
        >>> cpu_name() != ""
        True
    """
    with suppress(OSError), CPUINFO.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown"


@functools.cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _ask_nvml(question: Callable[[Any], str | float]) -> str | float | None:
    """Ask NVIDIA's management library."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return question(pynvml)
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # no library, no driver, no permission, a part of a GPU: in each case the facts are unknown
        return None


def _joined(backend: Any, *names: str) -> str:
    """Return the switches that are on, of those that this version of torch has."""
    return ", ".join(name.removeprefix("allow_") for name in names if getattr(backend, name, False))


def _attention(backend: Any) -> str:
    """Return the kernels that scaled_dot_product_attention may choose from."""
    kinds = ("flash", "mem_efficient", "cudnn", "math")
    return ", ".join(kind for kind in kinds if getattr(backend, f"{kind}_sdp_enabled", lambda: False)())


def _fp32_arithmetic(backend: Any, allowed: Callable[[], bool] = lambda: False) -> str | None:
    """Return the arithmetic of a backend's FP32 products: ``ieee``, or the rounded one of its inputs, e.g. ``tf32``.

    torch has two generations of this switch and forbids mixing them. The newer one is ``none`` until it is set.
    """
    try:
        setting = getattr(backend, "fp32_precision", "none")
        return setting if setting != "none" else "tf32" if allowed() else "ieee"
    except RuntimeError:
        return None


def attached_tool() -> str | None:
    """Return the tool that was attached to this process at its start and uses CUPTI, by its variables; None without.

    CUPTI serves one tool at a time. Another one gets ``CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED``.
    """
    if "NSYS_PROFILING_SESSION_ID" in os.environ:
        return "Nsight Systems (nsys)"
    injected = os.environ.get("CUDA_INJECTION64_PATH")  # the driver loads this library into the process
    return Path(injected).name if injected else None


def cuda_settings() -> Facts:
    """Return the fields of `lightning_perf.trace.description.Settings` about the current CUDA device."""
    import torch

    flags = flag_facts()
    tf32 = {name: flags[f"flags.tf32_{name}"] for name in ("matmul", "cudnn")}
    return {
        "uuid": str(torch.cuda.get_device_properties().uuid),
        "tf32_matmul": tf32["matmul"] and tf32["matmul"] == "tf32",
        "tf32_convolution": tf32["cudnn"] and tf32["cudnn"] == "tf32",
        "attached_tool": attached_tool(),
        "allocator": next(filter(None, map(os.environ.get, ALLOCATOR_VARIABLES)), None),
    }


def missing_cpp_compiler() -> str | None:
    """Return the C++ compiler of TorchInductor if it is missing: that of ``CXX``, else the usual one of this system."""
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    return None if shutil.which(name.split()[0]) is not None else name
