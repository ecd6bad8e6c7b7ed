"""Find the cores, memory and devices of this machine.

A separate process asks PyTorch for the devices, because a process that keeps a GPU open disturbs its runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from recipes.signlang.errors import RecipeError

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 300
FIRST_WITH_TF32 = (8, 0)
"""CUDA compute capability of Ampere."""


def usable_cores() -> int:
    """Return the number of cores for this process; taskset, cgroup cpusets and most schedulers may limit it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory_bytes() -> int:
    """Return the memory that is available without swapping, or 0 if the system does not report it."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


@dataclass(frozen=True)
class TrainDevice:
    """The device of a training.

    Attributes:
        kind: Lightning's name of its accelerator.
        name: Name of the device; empty if only its kind is known.
        has_tf32: Whether it can compute FP32 products in TF32.
    """

    kind: Literal["cpu", "gpu", "mps"]
    name: str
    has_tf32: bool


def find_device(accelerator: str) -> TrainDevice:
    """Find the device that a training with this accelerator would use.

    Args:
        accelerator: ``auto``, ``cpu``, ``gpu`` or ``mps``.

    Returns:
        The device.

    Raises:
        RecipeError: PyTorch sees no such device, or does not start.
    """
    if accelerator == "cpu":
        return TrainDevice("cpu", "", has_tf32=False)
    command = [sys.executable, "-m", "recipes.signlang.machine"]
    try:
        asked = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        ).stdout
        found = TrainDevice(**json.loads(asked.strip().splitlines()[-1]))
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no output"])[-1]
        raise RecipeError("PyTorch", f"failed to list its devices ({last})", "Reinstall it") from error
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise RecipeError("PyTorch", "did not list its devices", "Try --accelerator cpu") from error
    if (accelerator == "gpu" and found.kind == "cpu") or (accelerator == "mps" and found.kind != "mps"):
        raise RecipeError(
            f"--accelerator {accelerator}", "PyTorch sees no such device", "Use --accelerator cpu, or auto"
        )
    return found


def _ask() -> TrainDevice:
    import torch

    if torch.cuda.is_available():
        has_tf32 = torch.version.hip is None and torch.cuda.get_device_capability() >= FIRST_WITH_TF32
        return TrainDevice("gpu", torch.cuda.get_device_name(), has_tf32=has_tf32)
    return TrainDevice("mps" if torch.backends.mps.is_available() else "cpu", "", has_tf32=False)


if __name__ == "__main__":
    print(json.dumps(asdict(_ask())))  # noqa: T201
