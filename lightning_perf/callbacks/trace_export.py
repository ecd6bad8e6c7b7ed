"""Writing what torch's profiler recorded to a packed trace file."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

__all__ = ["export_trace"]

GZIP_LEVEL = 1
"""Traces are packed between two steps, so time counts for more than a quarter of their size."""


def export_trace(stopped: Any, folder: Path, name: str) -> Path:
    """Write a trace, whole or not at all.

    Args:
        stopped: A `torch.profiler.profile` that has recorded and was stopped.
        folder: Where to.
        name: The file's name without its suffix.

    Returns:
        The file, ``NAME.pt.trace.json.gz``.

    Raises:
        OSError: It cannot be written. Torch itself says nothing of a disk that is full.
        RuntimeError: Torch cannot export the recording.
    """
    path = folder / f"{name}.pt.trace.json.gz"
    plain = folder / f".{name}.partial.json"
    packed = folder / f".{name}.partial.json.gz"
    try:
        stopped.export_chrome_trace(str(plain))
        if not plain.exists():
            raise OSError(f"torch could not write to {folder}: its disk may be full")
        # torch itself would pack it at the highest level, which takes ten times as long as everything else here.
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=GZIP_LEVEL) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        packed.replace(path)
    finally:
        for left in folder.glob(f".{name}.partial*"):  # torch has a partial file of its own
            left.unlink(missing_ok=True)
    return path
