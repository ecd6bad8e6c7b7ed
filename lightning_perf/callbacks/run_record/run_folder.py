"""The folder of a fit: the same on all ranks, and complete once every rank has written its files.

Ranks announce by marker files that they are done: a collective call would hang on a dead rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.lightning_compat import Trainer
from lightning_perf.run_files.run_folder import RankMarkers, make_run_folder

LOOK_EVERY_S = 0.05
"""Time between two looks for the markers of other ranks."""


def claim_run_folder(trainer: Trainer, dirpath: str | None, errors: ErrorReporter) -> Path | None:
    """Make the folder of a fit. A collective call, as `claim_folder` is."""
    log_dir = None
    with errors.instead(f"the logger has no folder, {trainer.default_root_dir} is used"):
        # A collective call of the first logger, and None if loggers save nothing (`fast_dev_run`).
        log_dir = trainer.log_dir
    log_dir = log_dir or trainer.default_root_dir
    path = dirpath if dirpath is not None else f"{str(log_dir).rstrip('/')}/perf"
    return claim_folder(path, int(trainer.global_rank), trainer.strategy.broadcast, errors)


def claim_folder(
    path: str, rank: int, broadcast: Callable[[str | None], str | None], errors: ErrorReporter
) -> Path | None:
    """Make the folder of a training, with a suffix ``_1``, ``_2``, … if the path is taken; None if that fails.

    A collective call: every rank makes it, and all get the same folder.
    """
    made: str | None = None
    if rank == 0:
        with errors.instead("traces and step times are not saved, give dirpath=… a writable folder"):
            made = str(make_run_folder(path))
    made = broadcast(made)
    if made is None:
        return None
    folder = Path(made)
    try:
        folder.mkdir(parents=True, exist_ok=True)  # on another machine it may not exist yet
    except OSError as error:
        errors.report(f"traces and step times of rank {rank} are not saved", error)
        return None
    return folder


class RankFiles:
    """Writes the marker file of this rank, and lets rank 0 wait for those of the others."""

    def __init__(self, folder: Path | None, *, rank: int, world_size: int, errors: ErrorReporter) -> None:
        self._markers = RankMarkers(folder) if folder is not None and world_size > 1 else None
        self._folder = folder
        self._rank = rank
        self._world_size = world_size
        self._errors = errors
        self._ended = False
        if self._markers is not None:
            try:
                self._markers.begin(rank)
            except OSError as error:
                self._markers = None
                errors.report("the report may lack the recordings of other ranks", error)

    def ends(self) -> None:
        """Mark this rank as done: its files are written. A second call does nothing."""
        if self._markers is None or self._ended:
            return
        self._ended = True
        with self._errors.instead("other ranks may wait for this one before they report"):
            self._markers.end(self._rank)

    def wait(
        self,
        timeout_s: float,
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> list[str]:
        """Wait until every rank that shares the folder has ended or died, and remove the markers.

        It returns notes on ranks without complete files.
        """
        markers = self._markers
        if markers is None:
            return []
        others = [rank for rank in range(self._world_size) if rank != self._rank]
        deadline_s = now_s() + timeout_s
        elsewhere = [rank for rank in others if not markers.has_begun(rank)]
        waited_for = [rank for rank in others if rank not in elsewhere]
        unfinished = [rank for rank in waited_for if not markers.has_ended(rank)]
        while unfinished and now_s() < deadline_s:
            sleep(LOOK_EVERY_S)
            dead = [rank for rank in unfinished if markers.is_dead(rank)]
            unfinished = [rank for rank in unfinished if not markers.has_ended(rank)]
            if set(unfinished) <= set(dead):
                break
        for rank in range(self._world_size):
            markers.remove(rank)
        notes = []
        if elsewhere:
            notes.append(
                f"{_named(elsewhere)} wrote to {self._folder} on another machine's disk, which this one does not "
                "share: copy the files of all machines into one folder and run: lightning-perf analyze FOLDER"
            )
        if unfinished:
            notes.append(f"{_named(unfinished)} died or did not end: some recordings may be missing.")
        return notes


def _named(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"Ranks {shown}"
