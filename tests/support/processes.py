"""Looking after processes that tests start."""

from __future__ import annotations

import os
import time
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie, which nobody has waited for, counts as dead."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return not Path("/proc/self").exists()


def dies(pid: int, seconds: float = 20.0) -> bool:
    """Whether a process is dead, or will be within some seconds."""
    until = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_alive(pid)
