"""Runs a script in an edited copy of its project, to see which values arrive at the Trainer, loader and optimizer."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from lightning_perf.tune.messages import Arguments, Order
from lightning_perf.tune.pairs import start_worker
from lightning_perf.workers.script import Script


def run_in_copy(order: Order, texts: Mapping[str, bytes], timeout_s: float) -> Arguments:
    """Train a step in a copy of the script's project with other texts of some files, and return its arguments."""
    assert order.script is not None
    copy = Path(tempfile.mkdtemp(dir=order.folder)) / "project"
    write_copy(order.script.root, copy, {Path(path): text for path, text in texts.items()})
    with start_worker(replace(order, scout=False, copy=str(copy))) as worker:
        return worker.receive(Arguments, timeout_s=timeout_s)


def write_copy(root: Path, copy: Path, texts: Mapping[Path, bytes]) -> None:
    """Make a copy of a folder with other texts of some files. Everything else in it are links."""
    copy.mkdir()
    for entry in root.iterdir():
        if entry in texts:
            (copy / entry.name).write_bytes(texts[entry])
        elif entry.is_dir() and any(entry in path.parents for path in texts):
            write_copy(entry, copy / entry.name, texts)
        else:
            (copy / entry.name).symlink_to(entry)


def move_to_copy(script: Script, copy: Path) -> Script:
    """Return the script in a copy of its project, and let this process find modules and files there."""
    root, here = script.root, Path.cwd().resolve()

    def moved(word: str) -> str:
        return str(copy) + word[len(str(root)) :] if word == str(root) or word.startswith(f"{root}{os.sep}") else word

    sys.path[:] = [word if "site-packages" in word else moved(word) for word in sys.path]
    if here.is_relative_to(root):
        os.chdir(copy / here.relative_to(root))
    return replace(script, words=tuple(map(moved, script.words)))
