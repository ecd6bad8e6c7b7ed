"""The run record of a fit: passes Lightning's hooks on to the recorder."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning_perf.callbacks.background import BackgroundThread
from lightning_perf.callbacks.lightning_compat import Trainer
from lightning_perf.callbacks.peak_memory import end_peak, start_peak
from lightning_perf.callbacks.run_record.device_health import DeviceHealth
from lightning_perf.callbacks.run_record.run_facts import (
    Later,
    OpenFacts,
    batch_facts,
    data_facts,
    machine_facts,
    model_facts,
    training_facts,
)
from lightning_perf.callbacks.steps.fit_state import FitContext
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.compare.records.fingerprint import NOT_HASHED
from lightning_perf.machine.environment import host_notes
from lightning_perf.machine.processor import busy_s, process_counters
from lightning_perf.run_files.fit.gpu_health import GPU_HEALTH
from lightning_perf.run_files.run_record import FactValue, Outcome, RunRecorder

WAIT_S = 1.0
"""Longest wait for all late facts, at the end of training."""


class LateFacts:
    """Finds facts that need files or other programs, so that a slow disk does not hold up the training.

    Each has a thread, which does not keep the process alive.
    """

    def __init__(self, sources: Mapping[str, Later]) -> None:
        self._found: dict[str, FactValue] = {}
        self._threads = {
            name: BackgroundThread(self._find(name, source), f"lightning_perf {name}")
            for name, source in sources.items()
        }
        for thread in self._threads.values():
            thread.start()

    def __bool__(self) -> bool:
        """Whether any fact is still to be collected."""
        return bool(self._threads)

    def collect(self) -> dict[str, FactValue]:
        """Return the facts that were found since the last call."""
        done = [name for name, thread in self._threads.items() if thread.over]
        for name in done:
            del self._threads[name]
        return {name: self._found[name] for name in done}

    def finish(self) -> dict[str, FactValue]:
        """Wait for the remaining facts, for a limited time, and return them."""
        end_s = time.monotonic() + WAIT_S
        for thread in self._threads.values():
            thread.join(max(0.0, end_s - time.monotonic()))
        found = self.collect()
        late = dict.fromkeys(self._threads, f"{NOT_HASHED}reading the files takes longer than the training")
        self._threads = {}
        return found | late

    def _find(self, name: str, source: Later) -> Generator[float, None, None]:
        yield 0.0
        try:
            self._found[name] = source()
        except Exception as error:
            self._found[name] = f"{NOT_HASHED}{error}"


UNWATCHED = "the device is not watched for throttling and other processes"


class LoopRecord(FitObserver):
    """Records a training, on rank 0. On other ranks it only watches the GPU of that rank.

    The hashes are taken before the first step, within the limits of `lightning_perf.compare.records.fingerprint`. The
    hash of the first batch is part of the first step's time, which comparisons leave out as warm-up. All that needs
    files, other programs or the driver waits for the end of the first batch. A fact that cannot be read, or a record
    that cannot be written, is reported as an error and left out.
    """

    consequence = "the run record is incomplete"

    def __init__(self, context: FitContext) -> None:
        self._loop = loop = context.loop
        self._folder = folder = context.folder
        self._errors = errors = context.errors
        self._siblings = loop.world_size > 1
        self._recorder: RunRecorder | None = None
        self._health: DeviceHealth | None = None
        self._load: HostLoad | None = None
        self._open: dict[str, Later] = {}
        self._late = LateFacts({})
        self._batches = 0
        self._watches = folder is None or (loop.rank != 0 and loop.device.type != "cuda")
        if folder is not None and loop.rank == 0:
            with errors.instead("the run leaves no record"):
                self._recorder = RunRecorder(folder, {}, host_notes())

    @property
    def idle(self) -> Collection[str]:
        """The hook of a batch, once all facts are known."""
        return ("on_batch_start",) if self._watches and not self._late else ()

    def training_begins(self) -> None:
        """Start to count the training time: the preparations are over."""
        if self._recorder is None:
            return
        self._recorder.training_begins()
        start_peak(self._loop.device)

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Hash the first batch that is trained on. The second one shows that the first is over."""
        if self._late:
            self._add(self._late.collect())
        elif self._watches:
            self.idle_changes()
        self._batches += 1
        if self._batches == 1 and self._recorder is not None:
            self._write(lambda recorder: recorder.add_facts(batch_facts(batch)))
        elif self._batches == 2:
            self.first_batch_ended()

    def first_batch_ended(self) -> None:
        """Find the facts that would have held up the first batch, and start to watch the machine."""
        if self._watches:
            return
        self._watches = True
        with self._errors.instead(UNWATCHED, kind="device"):
            if uuids := self._loop.gpu_uuids():
                self._health = DeviceHealth(uuids, rank=self._loop.rank, siblings=self._siblings)
                self._health.start()
        if self._recorder is None:
            return
        with self._errors.instead("the load of the machine is not recorded"):
            self._load = HostLoad(siblings=self._siblings)
        self.add_facts({"its surroundings": lambda: machine_facts(self._loop.device)})
        self._late = LateFacts(self._open)

    def add_facts(self, sources: Mapping[str, Callable[[], OpenFacts]]) -> None:
        """Complete the fingerprint by the facts that functions return, by a name for errors."""
        found: dict[str, FactValue] = {}
        for what, source in sources.items() if self._recorder is not None else ():
            found |= self._ask(what, source)
        self._add(found)

    def epoch(
        self, epoch: int, steps: int, metrics: Mapping[str, object], higher_is_better: Mapping[str, bool] | None = None
    ) -> None:
        """Record an epoch that has ended."""
        if self._health is not None:
            self._add_news(self._health)
        self._write(lambda recorder: recorder.epoch_ends(epoch, steps, metrics, higher_is_better))

    def ends(self, error: BaseException | None = None) -> None:
        """The fit has ended, by its limits or early stopping, or by an error.

        Ctrl-C and SIGTERM arrive as exceptions that are not errors: the fit was stopped.
        """
        outcome, text = Outcome.FINISHED, None
        if error is not None:
            failed = isinstance(error, Exception)
            outcome = Outcome.FAILED if failed else Outcome.STOPPED
            text = f"{type(error).__name__}: {error}" if failed else type(error).__name__
        self.first_batch_ended()
        self._add(self._late.finish())
        health, self._health = self._health, None
        if health is not None:
            own = health.finish()
            self._add_news(health)
            if own is not None and self._folder is not None:
                with self._errors.instead("the report lacks the GPU's clocks, power and energy", kind="device"):
                    GPU_HEALTH.replace(self._folder, self._loop.rank, own)
        load, self._load = self._load, None
        other_cpu_share = cpu_throttled_share = None
        if load is not None:
            with self._errors.instead("the load of the machine is not recorded"):
                other_cpu_share, cpu_throttled_share = load.shares()
        self._write(
            lambda recorder: recorder.ends(
                outcome,
                error=text,
                peak_device_bytes=end_peak(self._loop.device),
                other_cpu_share=other_cpu_share,
                cpu_throttled_share=cpu_throttled_share,
            )
        )

    def _ask(self, what: str, source: Callable[[], OpenFacts]) -> dict[str, FactValue]:
        """Return the facts of a source that are known at once, and keep the others for later."""
        try:
            facts = source()
        except Exception as error:
            self._errors.report(f"the run record lacks facts of {what}", error)
            return {}
        self._open |= {name: fact for name, fact in facts.items() if callable(fact)}
        return {name: fact for name, fact in facts.items() if not callable(fact)}

    def _add(self, facts: dict[str, FactValue]) -> None:
        if facts:
            self._write(lambda recorder: recorder.add_facts(facts))

    def _add_news(self, health: DeviceHealth) -> None:
        """Record new observations of the GPUs."""
        for problem, invalid in health.news():
            self._write(functools.partial(RunRecorder.health, problem=problem, invalid=invalid))
        for error in health.errors():
            self._errors.report(UNWATCHED, error, kind="device")

    def _write(self, write: Callable[[RunRecorder], None]) -> None:
        if self._recorder is not None:
            with self._errors.instead("the run record is incomplete"):
                write(self._recorder)


class FitRecord(LoopRecord):
    """Records a fit of a Trainer."""

    def __init__(self, context: FitContext, trainer: Trainer, *, keep_fp32: Sequence[str], hashed: bool) -> None:
        super().__init__(context)
        self._trainer = trainer
        self._finished_epoch: int | None = None
        self.add_facts(
            {
                "the training": lambda: {**training_facts(trainer), "train.keep_fp32": ", ".join(keep_fp32) or None},
                "the model": functools.partial(model_facts, context.loop.model, hashed=hashed),
                "the data": functools.partial(data_facts, trainer, hashed=hashed),
            }
        )

    def on_epoch_end(self) -> None:
        """Note that an epoch has ended. Its metrics are complete when the next epoch or the end of training comes."""
        self._finished_epoch = int(self._trainer.current_epoch)

    def finish(self) -> None:
        self.on_epoch_start()

    def on_epoch_start(self) -> None:
        """Record the epoch that has ended, if one has."""
        epoch, self._finished_epoch = self._finished_epoch, None
        if epoch is None:
            return
        # By now Lightning has computed and reset the metrics on all ranks, so reading them is not a collective call.
        steps, metrics = int(self._trainer.global_step), self._trainer.callback_metrics
        self.epoch(epoch, steps, metrics, directions(self._trainer, metrics))


def directions(trainer: Trainer, names: Iterable[str]) -> dict[str, bool]:
    """Return whether higher is better, for the logged metrics that torchmetrics knows."""
    known: dict[str, bool] = {}
    epoch_loop = trainer.fit_loop.epoch_loop
    for loop in (epoch_loop, epoch_loop.val_loop):
        for logged in getattr(loop, "_results", {}).values():
            better = getattr(getattr(logged, "value", None), "higher_is_better", None)
            if isinstance(better, bool):
                name = logged.meta.name
                known |= dict.fromkeys((name, f"{name}_step", f"{name}_epoch"), better)
    in_names = ((name, known.get(name.partition("/dataloader_idx")[0])) for name in names)
    return {name: better for name, better in in_names if better is not None}


LEAST_S = 1.0
"""Shorter trainings are not judged: the kernel counts in hundredths of a second."""

_PROC = Path("/proc")
_CONTROL_GROUP = Path("/sys/fs/cgroup")


class HostLoad:
    """Measures the load of other processes from its making on.

    Only Linux has the counters: ``/proc/stat`` has the busy time of each processor, including that of other virtual
    machines, and ``cpu.stat`` that of the control group. Reading them takes milliseconds.
    """

    def __init__(self, *, siblings: bool = False, proc: Path = _PROC, control_group: Path = _CONTROL_GROUP) -> None:
        self._family = os.getppid() if siblings else os.getpid()
        self._proc = proc
        self._control_group = control_group
        self._began_s = time.monotonic()
        self._start = self._read()

    def shares(self) -> tuple[float | None, float | None]:
        """Return how busy the machine was with other work since the start, 0 to 1.

        Returns:
            The share of the usable processors' time that other processes took, and the share of the time in which a CPU
            quota held back the container. An unknown share stays None.
        """
        elapsed_s = time.monotonic() - self._began_s
        if elapsed_s < LEAST_S:
            return None, None
        all_s, own_s, throttled_s = (
            end - start if start is not None and end is not None else None
            for start, end in zip(self._start, self._read(), strict=True)
        )
        other = None
        if all_s is not None and own_s is not None and all_s > 0:  # some sandboxes count nothing
            other = _share((all_s - own_s) / (elapsed_s * len(os.sched_getaffinity(0))))
        return other, _share(throttled_s / elapsed_s) if throttled_s is not None else None

    def _read(self) -> tuple[float | None, float | None, float | None]:
        """Return the seconds of all processes, of the run's, and of the quota; None where nobody counts them."""
        all_s, own_s = busy_s(self._proc / "stat", stolen=True), _own_s(self._proc, self._family)
        return all_s, own_s, _throttled_s(self._control_group / "cpu.stat")


def _share(value: float) -> float:
    return round(min(1.0, max(0.0, value)), 4)


def _own_s(proc: Path, family: int) -> float | None:
    """Processor time of the run's processes, those that have ended included once their parent took note."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    try:
        pids = [int(name) for name in os.listdir(proc) if name.isdigit()]  # noqa: PTH208
    except OSError:
        return None
    for pid in pids:
        with suppress(OSError):  # it has ended
            counters = process_counters(pid, proc)
            parents[pid], ticks[pid] = int(counters[1]), sum(map(int, counters[11:15]))
    own = {family}
    while more := {pid for pid, parent in parents.items() if parent in own and pid not in own}:
        own |= more
    return sum(ticks.get(pid, 0) for pid in own) / os.sysconf("SC_CLK_TCK")


def _throttled_s(stat: Path) -> float | None:
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return None
    counts = dict(line.split() for line in lines if len(line.split()) == 2)
    return int(counts["throttled_usec"]) / 1e6 if "throttled_usec" in counts else None
