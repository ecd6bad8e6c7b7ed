"""How far a process and its children have read some files, told by the positions of their open files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["ReadingProgress"]


class ReadingProgress:
    """Follows this process and its children while they read files. Knows nothing where there is no ``/proc``.

    Args:
        sizes: The files' sizes in bytes, by path.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._read = dict.fromkeys(sizes, 0)

    def look(self) -> float:
        """Look, and return what part of the bytes has been read, from 0 to 1. It never shrinks."""
        for process in _with_children(os.getpid()):
            for path, position in _positions(process):
                if path in self._read:
                    self._read[path] = max(self._read[path], min(position, self._sizes[path]))
        total = sum(self._sizes.values())
        return sum(self._read.values()) / total if total else 1.0


def _with_children(process: int) -> Iterable[int]:
    yield process
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield from _with_children(child)


def _positions(process: int) -> Iterable[tuple[str, int]]:
    try:
        descriptors = os.listdir(f"/proc/{process}/fd")  # noqa: PTH208
    except OSError:
        return
    for descriptor in descriptors:
        try:
            path = os.readlink(f"/proc/{process}/fd/{descriptor}")  # noqa: PTH115  (Path is slow, and this runs often)
            if not path.startswith("/"):
                continue
            information = Path(f"/proc/{process}/fdinfo/{descriptor}").read_text()
        except OSError:
            continue  # closed since
        yield path, int(information.partition("pos:")[2].split()[0])
