"""Benchmarks that measure in processes of their own, and the costs of a process."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_module(
    module: str, *arguments: object, environment: Mapping[str, str] | None = None, given: bytes | None = None
) -> bytes:
    """Run a module of the benchmarks in a process of its own, and return the last line that it prints.

    Args:
        environment: All variables of the process; those of this process by default.
        given: Its standard input.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, input=given, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {done.returncode}")
    return done.stdout.splitlines()[-1]


def peak_memory_mb() -> float:
    """Return the peak resident memory of this program; NaN where the system does not show it.

    ``ru_maxrss`` would include the memory of the process that started this one.
    """
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii").splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), float("nan"))


def processor_time_s() -> float:
    """Return the processor time of this program and of its worker processes that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def load_average() -> str:
    """Return the load average of the last minute as text."""
    return f"{os.getloadavg()[0]:.1f}"
