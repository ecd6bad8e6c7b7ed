"""Make the synthetic dataset: rendered hands in the original's layout, kept in a cache folder.

Nothing here is photographed: all reports call the set *synthetic*.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from recipes.signlang.errors import RecipeError
from recipes.signlang.machine import usable_cores
from recipes.signlang.synthetic.render import render_capture

LABELS: tuple[str, ...] = (*"abcdefghiklmnopqrstuvwxy", "background")
"""The 25 labels of the original: ``background`` and the letters, except ``j`` and ``z``, which are movements."""

GENERATOR_VERSION = 1
"""Increase it with every change that alters a picture: a cached set of another version is never used."""

_WORTH_PROCESSES = 200
"""Fewest captures for rendering in several processes; with fewer, starting them costs more than it saves."""


@dataclass(frozen=True, kw_only=True)
class SyntheticSet:
    """Settings that determine every pixel of a synthetic dataset.

    Attributes:
        seed: Seed of all random numbers.
        size: Width and height of the pictures in pixels.
        captures: Captures per label.
        copies: Rotated copies per capture, numbered consecutively as in the original.
    """

    seed: int = 0
    size: int = 64
    captures: int = 30
    copies: int = 10

    @property
    def name(self) -> str:
        """The folder name in the cache, different for each content."""
        return f"signlang-v{GENERATOR_VERSION}-seed{self.seed}-{self.size}px-{self.captures}x{self.copies}"


def default_cache_dir() -> Path:
    """Return ``$XDG_CACHE_HOME/lightning_perf``, or ``~/.cache/lightning_perf`` (XDG Base Directory 0.8)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # By the specification, a relative path is invalid and must be ignored.
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "lightning_perf"


def ensure_synthetic(spec: SyntheticSet, cache_dir: Path, *, processes: int | None = None) -> Path:
    """Return the folder of a synthetic dataset; if the cache lacks it, render it first.

    The set is written to a temporary folder and moved to its place as a whole, so an interrupted run leaves no partial
    set. If two runs render the set at once, one of them uses the result of the other: both write the same bytes.

    Args:
        spec: Settings of the set.
        cache_dir: Folder of the cache.
        processes: Rendering processes; None means one per usable core. The pictures do not depend on it.

    Returns:
        The folder with ``a_0.png`` to ``background_<n>.png``.

    Raises:
        RecipeError: The cache folder cannot be written.
    """
    place = cache_dir / spec.name
    if place.is_dir():
        return place
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{spec.name}-", dir=cache_dir))
    except OSError as error:
        problem = f"the folder for the embedded data cannot be written ({error.strerror})"
        raise RecipeError(cache_dir, problem, "Name another with --cache-dir") from error
    try:
        _render_all(spec, staging, processes or usable_cores())
        staging.chmod(0o755)
        try:
            staging.rename(place)
        except OSError:
            # Another process was first; a folder that is not empty cannot be replaced by a rename.
            if not place.is_dir():
                raise
    except OSError as error:
        problem = f"writing the embedded data failed ({error.strerror})"
        raise RecipeError(staging, problem, "Free space, or name another folder with --cache-dir") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return place


def _render_all(spec: SyntheticSet, folder: Path, processes: int) -> None:
    tasks = [(spec, folder, label, capture) for capture in range(spec.captures) for label in range(len(LABELS))]
    with tqdm(total=len(tasks) * spec.copies, desc="Rendering synthetic hands", unit="image") as bar:
        for _ in _run(tasks, processes):
            bar.update(spec.copies)


def _run(tasks: list[tuple[SyntheticSet, Path, int, int]], processes: int) -> Iterator[None]:
    if processes == 1 or len(tasks) < _WORTH_PROCESSES:
        yield from map(_write_capture, tasks)
        return
    # Spawn instead of fork: the parent may have threads (torch, tqdm) that do not survive a fork.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _leave_interrupts) as pool:
        yield from pool.map(_write_capture, tasks, chunksize=5)


def _leave_interrupts() -> None:
    """Ignore Ctrl-C, which reaches every process of the terminal: the parent process handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _write_capture(task: tuple[SyntheticSet, Path, int, int]) -> None:
    spec, folder, label, capture = task
    # Each capture has its own random stream, so neither order nor process matters.
    rng = np.random.default_rng(np.random.SeedSequence(spec.seed, spawn_key=(label, capture)))
    for copy, picture in enumerate(render_capture(LABELS[label], rng, spec.size, spec.copies)):
        number = capture * spec.copies + copy
        Image.fromarray(picture).save(folder / f"{LABELS[label]}_{number}.png", compress_level=1)
