"""Run one block of a study on one device. Every engine uses this."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections import Counter
from pathlib import Path

import msgspec
from msgspec import Struct

from lightning_perf.compare.records.record import find_records
from lightning_perf.compare.study.checkouts import Lease, LeaseTakenError, device_leases
from lightning_perf.compare.study.definition import WARM_UP, Study, read_study
from lightning_perf.errors import CompareError
from lightning_perf.run_files import journal
from lightning_perf.run_files.run_record import FOLDER_VARIABLE, PLACE_VARIABLE, Outcome, Place
from lightning_perf.workers.channel import describe_exit, last_lines
from lightning_perf.workers.command import StoppedError, run_command

TICK_S = 0.5
"""Seconds between two looks at the progress of the blocks."""

MAX_LOSSES = 3
"""A block is given up after its worker or job was lost this many times."""

MOST_CHARACTERS = 200
"""Characters that a message quotes from the last line of a run's output."""

STALE_S = 600.0
"""A block that was cut off is repeated if its finished runs ended longer ago than this and than its longest run took:
the machine may have changed since then."""


class Device(Struct, frozen=True):
    """A device that one run at a time uses.

    Attributes:
        name: Name of its lease: ``cpu``, ``gpu0``, or the device's unique ID.
        visible: Value of ``CUDA_VISIBLE_DEVICES`` for the run; None does not change the variable.
    """

    name: str = "cpu"
    visible: str | None = None

    @property
    def where(self) -> str:
        """The name of the machine and of the device."""
        return f"{platform.node()}-{self.name}"


def run_block(folder: Path, block: int, device: Device, stop: threading.Event | None = None) -> None:
    """Run the missing runs of a block, with the device leased until its end.

    If a run fails, the whole block is repeated, since its other runs had different conditions. If a run was cut off
    because its study died, it is repeated. The finished runs of its block are kept. If they are too old, see `STALE_S`,
    the whole block is repeated. On a device that the study uses for the first time, a warm-up block runs first.
    """
    study = read_study(folder)
    try:
        with Lease(device_leases(), device.name, wait=True, stop=stop) as lease:
            if block != WARM_UP and journal.read_block(folder, WARM_UP).device != device.where:
                warm_up = _Block(study, folder, WARM_UP, device, lease, stop, journal_of=device.where).work()
                if not warm_up.done:
                    raise CompareError(
                        f"The warm-up block on {device.name} failed, so no other block ran on it: {warm_up.failure}."
                    )
            _Block(study, folder, block, device, lease, stop).work()
    except (StoppedError, LeaseTakenError):
        return


def repeats_lost(folder: Path, block: int, problem: str, losses: Counter[int]) -> bool:
    """Record that the process of a block was lost, and return whether to run the block again."""
    losses[block] += 1
    journal.append(folder, block, journal.Lost(problem))
    if losses[block] < MAX_LOSSES:
        return True
    journal.append(folder, block, journal.BlockOver(False, f"{problem} {MAX_LOSSES} times"))
    return False


class _Block(Struct, frozen=True):
    """One block on a leased device. `journal_of` names the device if this is the warm-up of a further device."""

    study: Study
    folder: Path
    block: int
    device: Device
    lease: Lease
    stop: threading.Event | None
    journal_of: str | None = None

    def work(self) -> journal.BlockState:
        """Run the missing runs until the block is over."""
        self._adopt_finished()
        while not (state := self._state()).over:
            if (gap_s := self._gap_s(state)) is not None:
                self._note(journal.Stale(gap_s))
                continue
            missing = [arm for arm in self.study.order(self.block) if arm not in state.finished]
            if state.failures >= self.study.attempts:
                self._note(journal.BlockOver(False, state.problem))
            elif not missing:
                self._note(journal.BlockOver(True))
            else:
                self._run(missing[0], state.attempt)
        return state

    def _gap_s(self, state: journal.BlockState) -> float | None:
        """Return how old the finished runs are, if they are too old for new runs; a warm-up has no such limit."""
        if self.block == WARM_UP or state.finished_unix_s is None or len(state.finished) == len(self.study.arms):
            return None
        gap_s = time.time() - state.finished_unix_s
        return gap_s if gap_s > max(STALE_S, *state.seconds) else None

    def _adopt_finished(self) -> None:
        """Record a run as finished if it finished after its study had died."""
        run = self._state().open_run
        if run is not None and (over := _run_over(run.arm, run.attempt, self.folder / run.folder, 0)).problem is None:
            self._note(over)

    def _run(self, arm: str, attempt: int) -> None:
        study, block = self.study, self.block
        run_folder = _new_folder(self.folder, f"runs/block{block:03}/attempt{attempt}-{arm}")
        place = Place(study.study_id, arm, block, study.order(block).index(arm), attempt, study.treatment)
        environment = {
            **study.arm(arm).variables(os.environ),
            PLACE_VARIABLE: msgspec.json.encode(place).decode(),
            FOLDER_VARIABLE: str(run_folder / "perf"),
            # Lightning's seed_everything() uses it if the script gives no seed.
            "PL_GLOBAL_SEED": str(study.seed + block),
        }
        if self.device.visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.device.visible
        command = study.arm(arm).filled(seed=study.seed + block, block=block, folder=run_folder)
        self._note(journal.RunBegan(arm, attempt, str(run_folder.relative_to(self.folder)), self.device.where))
        begin = time.monotonic()
        with (run_folder / "output.log").open("wb") as log:
            try:
                code = run_command(
                    command,
                    folder=study.arm(arm).folder or study.workdir,
                    environment=environment,
                    log=log,
                    stop=self.stop,
                    keep_open=(self.lease.descriptor,),
                )
            except BaseException:
                self._note(journal.Lost(f"the run of {arm} was stopped"))
                raise
        self._note(_run_over(arm, attempt, run_folder, code, time.monotonic() - begin))

    def _state(self) -> journal.BlockState:
        return journal.read_block(self.folder, self.block, self.journal_of)

    def _note(self, entry: journal.Entry) -> None:
        journal.append(self.folder, self.block, entry, self.journal_of)


def _run_over(arm: str, attempt: int, run_folder: Path, code: int, seconds: float | None = None) -> journal.RunOver:
    """Return the end of a run, with the reason why it does not count; without `seconds`, its training time."""
    log = run_folder / "output.log"

    def failed(problem: str, *, invalid: bool = False) -> journal.RunOver:
        return journal.RunOver(arm, attempt, seconds or 0.0, problem, invalid=invalid)

    if code:
        with log.open("rb") as stream:
            line = last_lines(stream, 1)[:MOST_CHARACTERS]
        return failed(f"it {describe_exit(code)}, see {log}{f': {line}' if line else ''}")
    try:
        records = find_records(run_folder)
    except CompareError:
        return failed(f"it left no run record (add PerfCallback or PerfTrainerCallback to its Trainer), see {log}")
    for record in records:
        if record.outcome is not Outcome.FINISHED:
            return failed(f"its training was {record.outcome.value}, see {log}")
        if record.problems:
            return failed(f"its times are invalid: {'; '.join(record.problems)}", invalid=True)
    revision = records[0].facts.get("code.revision")
    took_s = records[0].train_time_s or 0.0 if seconds is None else seconds
    return journal.RunOver(arm, attempt, took_s, revision=str(revision) if revision is not None else None)


def _new_folder(folder: Path, name: str) -> Path:
    for number in range(1000):
        path = folder / (name if not number else f"{name}.{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise CompareError(f"{folder / name}: this run started 1,000 times without a result. Check its command.")
