"""What this machine offers the recipe: cores and memory."""

from __future__ import annotations

import os

__all__ = ["available_memory_bytes", "usable_cores"]


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
