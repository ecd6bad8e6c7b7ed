"""The age of the process, and the time that ``torch.compile`` has taken in it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def process_age_ns() -> int | None:
    """Return the time since this process started, to 10 ms; None on a system without ``/proc``.

    See https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html, field 22.
    """
    try:
        # The name of the program may contain blanks and parentheses, so count the fields after its last one.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        started_ns = int(fields[19]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        return max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started_ns)
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def compile_ns() -> int:
    """Return the time that ``torch.compile`` has taken in this process; 0 if torch no longer says so.

    It reads ``torch._dynamo.utils.cumulative_time_spent_ns``, as torch 2.11 to 2.15 have it.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    spent = getattr(utils, "cumulative_time_spent_ns", None)
    if not isinstance(spent, dict):
        return 0
    names = ("entire_frame_compile", "entire_backward_compile")
    return sum(int(spent.get(name, 0)) for name in names)
