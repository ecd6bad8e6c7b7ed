"""Cores, memory and devices of this machine.

PyTorch is asked for devices in a process of its own: one that keeps a GPU open disturbs its runs.
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

__all__ = ["TrainDevice", "available_memory_bytes", "find_device", "usable_cores"]


REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 300
FIRST_WITH_TF32 = (8, 0)
"""CUDA compute capability of Ampere."""


def usable_cores() -> int:
    """Cores this process may run on; fewer than the machine has under taskset, cgroup cpusets and most schedulers."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory_bytes() -> int:
    """Memory that can be taken without swapping, or 0 where the system does not tell."""
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
    """The device that a training takes.

    Attributes:
        kind: Lightning's name of its accelerator.
        name: Its name; empty where only the kind is known.
        has_tf32: Whether it can compute FP32 products in TF32.
    """

    kind: Literal["cpu", "gpu", "mps"]
    name: str
    has_tf32: bool


def find_device(accelerator: str) -> TrainDevice:
    """Find the device that a training with this accelerator would take.

    Args:
        accelerator: ``auto``, ``cpu``, ``gpu`` or ``mps``.

    Returns:
        The device.

    Raises:
        RecipeError: There is no such device, or PyTorch does not start.
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
        raise RecipeError("PyTorch", f"could not be asked for its devices ({last})", "Mend its installation") from error
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise RecipeError("PyTorch", "gave no answer about its devices", "Try --accelerator cpu") from error
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
