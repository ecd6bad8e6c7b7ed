"""Page faults: what it costs that the C library gives memory back to the system and takes it anew.

glibc returns large blocks to the system when they are freed (mallopt(3): M_MMAP_THRESHOLD, M_TRIM_THRESHOLD). A
training frees its activations in every step; the system then has to clear each of their pages again, at its first use
in the next step, which is a fault. How much is returned depends on where blocks happen to lie, so that processes of one
training differ in it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import time
from pathlib import Path

__all__ = [
    "KEEP_MEMORY",
    "M_MMAP_MAX",
    "M_TRIM_THRESHOLD",
    "allocator_name",
    "count_page_faults",
    "keep_memory",
    "page_fault_ns",
]

KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
"""Environment variables with which glibc keeps what is freed, up to 16 GiB (mallopt(3))."""

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""The same two parameters by their numbers (glibc, malloc/malloc.h)."""

MAPS = Path("/proc/self/maps")
OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")
"""What takes the place of glibc's allocator when it is loaded: they have settings of their own."""

TOUCHED_BYTES = 4 << 20
ROUNDS = 5


def count_page_faults() -> int | None:
    """Faults of this process so far that needed no disk; None where the system does not count them."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def page_fault_ns() -> float | None:
    """What one costs here: fresh memory is taken, touched page by page and given back. Takes milliseconds.

    Returns:
        Nanoseconds of one thread, the median of some rounds; None where faults are not counted.
    """
    costs = []
    ones = bytes(TOUCHED_BYTES // mmap.PAGESIZE)
    for _ in range(ROUNDS):
        before = count_page_faults()
        begin_ns = time.perf_counter_ns()
        with mmap.mmap(-1, TOUCHED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:
            fresh[:: mmap.PAGESIZE] = ones
        elapsed_ns = time.perf_counter_ns() - begin_ns
        after = count_page_faults()
        if before is None or after is None or after == before:
            return None
        costs.append(elapsed_ns / (after - before))
    return statistics.median(costs)


def allocator_name() -> str | None:
    """Whose ``malloc`` this process uses: ``glibc``, ``jemalloc``, ``tcmalloc``, ``mimalloc``; None for any other."""
    try:
        loaded = MAPS.read_text(encoding="utf-8", errors="replace")
        version = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):  # no Linux, or no glibc
        return None
    for other in OTHER_ALLOCATORS:
        if f"lib{other}" in loaded:
            return other
    return "glibc" if version.startswith("glibc") else None


def keep_memory() -> bool:
    """Have glibc keep what this process frees from now on, as `KEEP_MEMORY` does from its start.

    Returns:
        Whether it does: False with another C library.
    """
    if allocator_name() != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, -1))
