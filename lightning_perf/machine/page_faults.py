"""Page faults: the cost of memory that the C library returns to the system and requests again.

glibc returns large blocks to the system when they are freed (mallopt(3): M_MMAP_THRESHOLD, M_TRIM_THRESHOLD). A
training frees its activations in every step. In the next step, the first use of each page is a fault, because the
system has to clear the page again. The amount that glibc returns depends on the place of the blocks, so processes of
the same training differ.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import time
from pathlib import Path

KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
"""Environment variables with which glibc keeps freed memory, up to 16 GiB (mallopt(3))."""

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""The same two parameters by their numbers (glibc, malloc/malloc.h)."""

MAPS = Path("/proc/self/maps")
OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")
"""Allocators that replace glibc's when they are loaded. They have settings of their own."""

TOUCHED_BYTES = 4 << 20
ROUNDS = 5


def count_page_faults() -> int | None:
    """Return the faults of this process so far without disk access; None if the system does not count them."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def page_fault_ns() -> float | None:
    """Measure the cost of one fault: request fresh memory, touch it page by page, free it. Takes milliseconds.

    The result is the median of some rounds on one thread; None if faults are not counted.
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
    """Return this process's ``malloc``: ``glibc``, ``jemalloc``, ``tcmalloc``, ``mimalloc``; None for any other."""
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
    """Make glibc keep the memory that this process frees from now on. `KEEP_MEMORY` does so from the start."""
    if allocator_name() != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, -1))
