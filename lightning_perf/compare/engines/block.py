"""Carrying out one block on one device: what every engine does in the end, wherever it does it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lightning_perf.compare import journal
from lightning_perf.compare.engines.child import PARENT_VARIABLE
from lightning_perf.compare.engines.lease import Lease, LeaseTakenError, device_leases
from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.record import FOLDER_VARIABLE, PLACE_VARIABLE, Outcome, Place, find_records
from lightning_perf.compare.study import Study, read_study

__all__ = ["Device", "run_block"]

POLL_S = 0.05
GRACE_S = 10.0
LOG_TAIL_BYTES = 2000


@dataclass(frozen=True)
class Device:
    """What a run has to itself.

    Attributes:
        name: Name of its lease: ``cpu``, ``gpu0``, or the device's unique id.
        visible: Value of ``CUDA_VISIBLE_DEVICES`` for the run; None leaves it as it is.
    """

    name: str = "cpu"
    visible: str | None = None


class _StoppedError(Exception):
    """The study is being stopped."""


def run_block(folder: Path, block: int, device: Device, stop: threading.Event | None = None) -> None:
    """Carry out a block, or what is left of it, with the device leased throughout.

    A run that fails repeats the whole block, since its partners then ran under other conditions. A run that was cut off
    because its driver died is run anew beside those of its block that had finished.

    Args:
        folder: The study's folder.
        block: Number of the block.
        device: The device.
        stop: Set to end the running run and come back early.
    """
    study = read_study(folder)
    try:
        with Lease(device_leases(), device.name, wait=True, stop=stop) as lease:
            _adopt_finished(folder, block)
            while not (state := journal.read_block(folder, block)).over:
                if state.attempt >= study.attempts:
                    journal.append(folder, block, journal.BlockOver(False, state.events[-1] if state.events else None))
                    return
                missing = [arm for arm in study.order(block) if arm not in state.finished]
                if not missing:
                    journal.append(folder, block, journal.BlockOver(True))
                    return
                _run(study, folder, block, state.attempt, missing[0], device, lease, stop)
    except (_StoppedError, LeaseTakenError):
        return


def _adopt_finished(folder: Path, block: int) -> None:
    """A run that finished after its driver had died has finished nonetheless."""
    state = journal.read_block(folder, block)
    if state.open_run is None:
        return
    run = state.open_run
    problem, seconds = _problem(folder / run.folder, 0)
    if problem is None:
        journal.append(folder, block, journal.RunOver(run.arm, run.attempt, seconds))


def _run(
    study: Study,
    folder: Path,
    block: int,
    attempt: int,
    arm: str,
    device: Device,
    lease: Lease,
    stop: threading.Event | None,
) -> None:
    run_folder = _new_folder(folder, f"runs/block{block:03}/attempt{attempt}-{arm}")
    place = Place(study.study_id, arm, block, study.order(block).index(arm), attempt, study.treatment)
    environment = {
        **os.environ,
        **study.arm(arm).environment,
        PLACE_VARIABLE: msgspec.json.encode(place).decode(),
        FOLDER_VARIABLE: str(run_folder / "perf"),
        PARENT_VARIABLE: str(os.getpid()),
        # Lightning's seed_everything() takes it where the script names no seed.
        "PL_GLOBAL_SEED": str(study.seed + block),
    }
    if device.visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = device.visible
    command = study.arm(arm).filled(seed=study.seed + block, block=block, folder=run_folder)
    journal.append(folder, block, journal.RunBegan(arm, attempt, str(run_folder.relative_to(folder)), device.name))
    begin = time.monotonic()
    with (run_folder / "output.log").open("wb") as log:
        # The child has to find this package; the command itself gets the environment as it is.
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("child.py")), *command],
            cwd=study.workdir,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lease.descriptor,),
        )
        try:
            _wait(process, stop)
        except BaseException:
            _end(process)
            journal.append(folder, block, journal.Lost(f"the run of {arm} was stopped"))
            raise
    _end_group(process.pid)
    problem, _ = _problem(run_folder, process.returncode)
    journal.append(folder, block, journal.RunOver(arm, attempt, time.monotonic() - begin, problem))


def _wait(process: subprocess.Popen[bytes], stop: threading.Event | None) -> None:
    while process.poll() is None:
        if stop is not None and stop.is_set():
            raise _StoppedError
        time.sleep(POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the run to end, as Ctrl-C would, then end it."""
    for request, patience_s in ((signal.SIGINT, GRACE_S), (signal.SIGTERM, GRACE_S / 2)):
        try:
            os.killpg(process.pid, request)
        except ProcessLookupError:
            break
        try:
            process.wait(patience_s)
            break
        except subprocess.TimeoutExpired:
            continue
    _end_group(process.pid)
    process.wait()


def _end_group(group: int) -> None:
    """End what a run left behind: workers that outlive it would disturb the next run."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _problem(run_folder: Path, returncode: int) -> tuple[str | None, float]:
    """Why a run does not count, and its training time."""
    if returncode:
        how = f"killed by {signal.Signals(-returncode).name}" if returncode < 0 else f"exit code {returncode}"
        return f"{how}, see {run_folder / 'output.log'}{_last_line(run_folder / 'output.log')}", 0.0
    try:
        records = find_records(run_folder)
    except CompareError:
        return f"it left no run record: does it train with PerfCallback? See {run_folder / 'output.log'}", 0.0
    unfinished = [record.outcome.value for record in records if record.outcome is not Outcome.FINISHED]
    if unfinished:
        return f"its training was {unfinished[0]}, see {run_folder / 'output.log'}", 0.0
    return None, records[0].train_time_s or 0.0


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
            lines = stream.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f": {lines[-1].strip()[:200]}" if lines else ""


def _new_folder(folder: Path, name: str) -> Path:
    for number in range(1000):
        path = folder / (name if not number else f"{name}.{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise CompareError(f"{folder / name}: was begun a thousand times. Something is wrong with its command.")
