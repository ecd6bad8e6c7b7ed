"""The native arithmetic of this machine's processor, and the time that programs take on it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from lightning_perf.machine.environment import cpu_info, cpu_name, load_average
from lightning_perf.machine.page_faults import allocator_name, page_fault_ns
from lightning_perf.workers.limits import usable_cores, usable_cpus

STATISTICS = Path("/proc/stat")

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Flags of processors with bfloat16 products: two of x86, one of Arm (Linux, arch/arm64/kernel/cpuinfo.c)."""

FP16_FLAGS = frozenset({"avx512_fp16", "amx_fp16", "asimdhp"})
"""Flags of processors with float16 products: two of x86, one of Arm."""


def cpu_flags() -> frozenset[str] | None:
    """Return extensions of the instruction set as Linux names them, or None without such a list."""
    info = cpu_info()
    flags = info.get("flags", info.get("Features"))
    return None if flags is None else frozenset(flags.split())


def busy_s(statistics: Path | None = None, *, stolen: bool = False) -> float | None:
    """Return how long programs have run on the processors that this process may use, since the start of the machine.

    With `stolen`, the time of other virtual machines on these processors counts, too. The seconds are summed over the
    processors; None if the system does not count them (proc_stat(5)).
    """
    try:
        usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        ticks = 0
        for line in (statistics or STATISTICS).read_text(encoding="ascii").splitlines():
            name, *counts = line.split()
            if name in usable:
                user, nice, system, _idle, _waiting, interrupts, soft_interrupts, steal, *_ = map(int, counts)
                ticks += user + nice + system + interrupts + soft_interrupts + steal * stolen
        return ticks / os.sysconf("SC_CLK_TCK")
    except (AttributeError, OSError, ValueError):  # not Linux, or a sandbox
        return None


def process_counters(pid: int | str, proc: Path = Path("/proc")) -> list[str]:
    """Return the counters of a process, from its state on: field 3 of proc_pid_stat(5) comes first.

    An ended process, or a system without ``/proc``, is an `OSError`.
    """
    # The name of the program may contain blanks and brackets, so count the fields after its last one.
    return (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()


def process_age_ns() -> int | None:
    """Return the time since this process started, to 10 ms; None on a system without ``/proc``."""
    try:
        started_ns = int(process_counters("self")[19]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        return max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started_ns)
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def processor_facts(
    *, trains: bool, page_faults: float | None = None
) -> dict[str, str | int | float | list[str] | None]:
    """Collect a recording's facts about the processor, described by `lightning_perf.trace.description.Processor`.

    Page faults are those per step, if they were counted. ``bf16`` is missing if the system does not list instructions.
    It is empty if torch has no library that would use them.
    """
    import torch

    flags = cpu_flags()
    if flags is None and hasattr(torch.cpu, "get_capabilities"):  # newer torch has the same names for those of interest
        flags = frozenset(name for name, present in torch.cpu.get_capabilities().items() if present is True)
    if flags is not None:
        uses_them: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        flags &= BF16_FLAGS if uses_them else frozenset()
    return {
        "name": cpu_name(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "bf16": None if flags is None else sorted(flags),
        "trains": trains,
        "load": load_average(),
        "cpus": usable_cpus(),
        "machine_cpus": os.cpu_count(),
        "page_faults": page_faults,
        "page_fault_ns": page_fault_ns() if page_faults else None,
        "allocator": allocator_name() if page_faults else None,
    }
