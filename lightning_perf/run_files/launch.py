"""The messages between ``lightning-perf run`` and the processes of the script that it starts.

The settings travel in an environment variable, which every process of the script inherits. The processes append notes
to a file that the variable names, so that the command knows which folders to report on.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec

from lightning_perf.run_files.atomic import read_variable
from lightning_perf.run_files.jsonl import JsonLines

LAUNCH_VARIABLE = "LIGHTNING_PERF_RUN"
"""Environment variable with a `LaunchSettings` as JSON."""


class LaunchSettings(msgspec.Struct, frozen=True):
    """Settings for the processes of a script: the file to append notes to, and arguments of `PerfCallback`."""

    notes: str
    callback: dict[str, str | int | float | bool] = {}


class CallbackAdded(msgspec.Struct, frozen=True, tag="callback added"):
    """A Trainer was created, and got a callback."""


class OwnMeasurement(msgspec.Struct, frozen=True, tag="own measurement"):
    """The script measures itself, with a `PerfCallback` or a `PerfLoop` of its own: the name of the class."""

    name: str


class MeasurementStarted(msgspec.Struct, frozen=True, tag="measurement started"):
    """A fit started in a folder; None if no folder could be made."""

    folder: str | None


class NothingMeasured(msgspec.Struct, frozen=True, tag="nothing measured"):
    """A fit is not measured, for a reason that is a clause."""

    reason: str


Note: TypeAlias = CallbackAdded | OwnMeasurement | MeasurementStarted | NothingMeasured

NOTES: JsonLines[Note] = JsonLines(Note, "note of a script")


RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
"""The variables by which Lightning recognizes the rank of a process that it did not start, in its order."""


def own_rank() -> int:
    """Return the rank that a launcher such as torchrun or SLURM gave to this process, 0 without a launcher."""
    rank = next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0").strip()
    return int(rank) if rank.isdecimal() else 0


def launch_settings() -> LaunchSettings | None:
    """Return the settings of ``lightning-perf run``, or None if it did not start this process."""
    return read_variable(LAUNCH_VARIABLE, LaunchSettings)


def leave_note(note: Note) -> None:
    """Leave a note for ``lightning-perf run``. Does nothing if it did not start this process, or has ended."""
    settings = launch_settings()
    # A process of the script may outlive the command, which removes the file when it ends.
    if settings is not None and os.path.exists(settings.notes):  # noqa: PTH110
        with suppress(OSError):
            NOTES.append(Path(settings.notes), note)
