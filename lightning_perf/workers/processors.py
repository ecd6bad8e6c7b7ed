"""How many processors and cores this process may keep busy."""

from __future__ import annotations

import math
import os
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int | None:
    """Return the cores that this process may keep busy, however many threads each runs; None if unknown.

    Its affinity may give it only some of the machine's cores, and a container's quota even fewer.
    """
    try:
        siblings = {
            (TOPOLOGY / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text(encoding="ascii")
            for cpu in os.sched_getaffinity(0)
        }
    except (AttributeError, OSError):  # not Linux, or a sandbox without this folder
        return None
    return min(len(siblings), _quota() or len(siblings))


def usable_cpus() -> int:
    """Return the logical processors that this process may keep busy, by its affinity and its container's quota."""
    try:
        number = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux
        return os.cpu_count() or 1
    return min(number, _quota() or number)


def _quota() -> int | None:
    """Return the processors' time that the control group may use (version 2), or None without a limit."""
    try:
        limit, period = QUOTA.read_text(encoding="ascii").split()
        return max(1, math.ceil(int(limit) / int(period)))
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max"
        return None
