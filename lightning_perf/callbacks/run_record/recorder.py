"""Writes the run record while a run is going on. Knows nothing of Lightning: told what happens, it appends lines."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from lightning_perf.compare.record_lines import (
    FOLDER_VARIABLE,
    PLACE_VARIABLE,
    RECORD_NAME,
    EpochEnded,
    FactsAdded,
    FactValue,
    HealthSeen,
    Outcome,
    Place,
    RunEnded,
    RunStarted,
    append_line,
    numbers_only,
)

__all__ = ["RunRecorder", "study_folder", "study_place"]


class RunRecorder:
    """Writes one run's record.

    A run takes its study's place only in the folder that the study gave it: a further fit of the same process finds
    that folder taken, and is recorded as a run outside of the study.

    Args:
        folder: The run's folder; the record is ``run.jsonl`` in it.
        facts: The fingerprint as far as it is known at the start.
        notes: What is worth knowing and need not agree between runs.
        now_s: The clock of training time.

    Raises:
        OSError: The record cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        facts: Mapping[str, FactValue],
        notes: Mapping[str, FactValue],
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.path = folder / RECORD_NAME
        self._now_s = now_s
        self._begin_s = now_s()
        self._ended = False
        started = time.time()
        run_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(started))}-{uuid.uuid4().hex[:8]}"
        place = study_place() if _is_study_folder(folder) else None
        append_line(self.path, RunStarted(run_id, started, dict(facts), dict(notes), place))

    def training_begins(self) -> None:
        """Start the clock of training time anew: what came before was preparation."""
        self._begin_s = self._now_s()

    def add_facts(self, facts: Mapping[str, FactValue]) -> None:
        """Complete the fingerprint."""
        append_line(self.path, FactsAdded(dict(facts)))

    def epoch_ends(self, epoch: int, steps: int, metrics: Mapping[str, object]) -> None:
        """Record an epoch with its validation.

        Args:
            epoch: Its number.
            steps: Optimizer steps since the start of training.
            metrics: What the Trainer knows by now; entries that are no numbers are left out.
        """
        append_line(self.path, EpochEnded(epoch, self._train_time_s(), steps, numbers_only(metrics)))

    def health(self, problem: str, *, invalid: bool = True) -> None:
        """Record what was seen on the device, and whether it makes the run's times invalid."""
        append_line(self.path, HealthSeen(problem, self._train_time_s(), invalid))

    def ends(
        self,
        outcome: Outcome,
        *,
        error: str | None = None,
        peak_device_bytes: int | None = None,
    ) -> None:
        """Record the end; a second end is ignored."""
        if self._ended:
            return
        self._ended = True
        append_line(self.path, RunEnded(outcome, self._train_time_s(), error, peak_device_bytes, _peak_host_bytes()))

    def _train_time_s(self) -> float:
        return self._now_s() - self._begin_s


def study_place() -> Place | None:
    """The place in a study that this process was given, or None outside a study."""
    text = os.environ.get(PLACE_VARIABLE)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Place)
    except msgspec.DecodeError:
        return None


def study_folder() -> str | None:
    """The folder in which a study wants this run's files, or None outside a study."""
    return os.environ.get(FOLDER_VARIABLE) or None


def _is_study_folder(folder: Path) -> bool:
    wanted = study_folder()
    return wanted is not None and folder.absolute() == Path(wanted).absolute()


def _peak_host_bytes() -> int | None:
    try:
        import resource
        import sys
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
