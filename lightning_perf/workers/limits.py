"""How many processors this process may use, and a limit on the memory of a worker process."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MEMORY_SHARE = 0.75
LEAST_MEMORY_BYTES = 1 << 30

FIRST_TO_END = "1000"
"""The largest value of ``/proc/self/oom_score_adj`` (proc(5)). If memory runs out, this process is ended first."""


def limit_memory(
    *, share: float = MEMORY_SHARE, least_bytes: int = LEAST_MEMORY_BYTES, most_bytes: int | None = None
) -> int:
    """Limit the memory of this process, and of each process that it starts. Beyond it they get a `MemoryError`.

    The limit is a share of the memory that is free now. `most_bytes` holds even below `least_bytes`.
    """
    limit = max(least_bytes, int(free_bytes() * share))
    if most_bytes is not None:
        limit = min(limit, most_bytes)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_END)
    return limit


def free_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that is free on the machine, or less if a control group of this process has less left.

    The result is 0 where the kernel does not show memory and this process.
    """
    try:
        host = _fields(proc / "meminfo").get("MemAvailable:", 0) * 1024
        path = (proc / "self" / "cgroup").read_text().partition("0::/")[2].splitlines()
    except OSError:
        return 0
    own = groups / path[0] if path else groups
    return min((host, *_left(own, groups)))


def _left(group: Path, root: Path) -> Iterator[int]:
    """Return the memory that a group and those around it have left: the limit less memory that cannot be reclaimed."""
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):  # no limit: there is no such file, or it says "max"
            limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
            yield max(0, limit - used + _fields(folder / "memory.stat").get("inactive_file", 0))
        if folder == root:
            return


def _fields(file: Path) -> dict[str, int]:
    lines = (line.split() for line in file.read_text().splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) > 1}


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
