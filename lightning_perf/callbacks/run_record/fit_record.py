"""The run record of a fit: passes Lightning's hooks on to the recorder."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lightning_perf.callbacks.error_reporter import ErrorReporter
from lightning_perf.callbacks.lightning_compat import Module, Trainer
from lightning_perf.callbacks.peak_memory import end_peak, start_peak
from lightning_perf.callbacks.run_record.device_health import DeviceHealth, gpu_uuids
from lightning_perf.callbacks.run_record.host_load import HostLoad, LoadSeen
from lightning_perf.callbacks.run_record.late_facts import LateFacts
from lightning_perf.callbacks.run_record.run_facts import (
    Later,
    OpenFacts,
    batch_facts,
    data_facts,
    model_facts,
    surroundings_facts,
    training_facts,
)
from lightning_perf.callbacks.steps.observers import FitObserver
from lightning_perf.machine.environment import host_notes
from lightning_perf.run_files.run_record import FactValue, Outcome, RunRecorder


class LoopRecord(FitObserver):
    """Records a training, on rank 0. On other ranks it does nothing.

    The hashes are taken before the first step, within the limits of `lightning_perf.compare.records.fingerprint`. The
    hash of the first batch is part of the first step's time, which comparisons leave out as warm-up. All that needs
    files, other programs or the driver waits for the end of the first batch. A fact that cannot be read, or a record
    that cannot be written, is reported as an error and left out.

    Args:
        sources: Functions that return further facts, by a name for errors. They are called before the first step.
        later: Functions that return facts after the first batch, by a name for errors.
    """

    consequence = "the run record is incomplete"

    def __init__(
        self,
        folder: Path | None,
        errors: ErrorReporter,
        *,
        device: torch.device,
        uuids: Callable[[], list[str]],
        world_size: int,
        facts: Mapping[str, FactValue],
        sources: Mapping[str, Callable[[], OpenFacts]],
        later: Mapping[str, Callable[[], OpenFacts]],
    ) -> None:
        self._errors = errors
        self._device = device
        self._uuids = uuids
        self._siblings = world_size > 1
        self._recorder: RunRecorder | None = None
        self._health: DeviceHealth | None = None
        self._load: HostLoad | None = None
        self._later = dict(later)
        self._open: dict[str, Later] = {}
        self._late = LateFacts({})
        self._batches = 0
        self._watches = False
        if folder is None:
            return
        found = dict(facts)
        for what, source in sources.items():
            found |= self._ask(what, source)
        try:
            self._recorder = RunRecorder(folder, found, host_notes())
        except Exception as error:
            errors.report("the run leaves no record", error)

    @property
    def idle(self) -> Collection[str]:
        """The hook of a batch, once all facts are known and no device is watched."""
        done = self._recorder is None or (self._watches and not self._late and self._health is None)
        return ("on_batch_start",) if done else ()

    def training_begins(self) -> None:
        """Start to count the training time: the preparations are over."""
        if self._recorder is None:
            return
        self._recorder.training_begins()
        start_peak(self._device)

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Hash the first batch that is trained on. The second one shows that the first is over."""
        if self._recorder is None:
            return
        if self._health is not None:
            self._health.tick()
        if self._late:
            self._add(self._late.collect())
        elif self._watches and self._health is None:
            self.idle_changes()
        self._batches += 1
        if self._batches == 1:
            self._write(lambda recorder: recorder.add_facts(batch_facts(batch)))
        elif self._batches == 2:
            self.first_batch_ended()

    def first_batch_ended(self) -> None:
        """Find the facts that would have held up the first batch, and start to watch the machine."""
        if self._recorder is None or self._watches:
            return
        self._watches = True
        try:
            self._load = HostLoad(siblings=self._siblings)
        except Exception as error:
            self._errors.report("the load of the machine is not recorded", error)
        for what, source in self._later.items():
            self._add(self._ask(what, source))
        try:
            self._health = self._watch()
        except Exception as error:
            self._unwatched(error)
        self._late = LateFacts(self._open)

    def add_facts(self, what: str, source: Callable[[], OpenFacts]) -> None:
        """Complete the fingerprint."""
        if self._recorder is not None:
            self._add(self._ask(what, source))

    def epoch(
        self, epoch: int, steps: int, metrics: Mapping[str, object], higher_is_better: Mapping[str, bool] | None = None
    ) -> None:
        """Record an epoch that has ended."""
        self._write(lambda recorder: recorder.epoch_ends(epoch, steps, metrics, higher_is_better))

    def finishes(self) -> None:
        """The fit has ended, by its limits or by early stopping."""
        self._end(Outcome.FINISHED)

    def fails(self, error: BaseException) -> None:
        """The fit failed or was stopped: Ctrl-C and SIGTERM arrive as exceptions that are not errors."""
        if isinstance(error, Exception):
            self._end(Outcome.FAILED, f"{type(error).__name__}: {error}")
        else:
            self._end(Outcome.STOPPED, type(error).__name__)

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

    def _watch(self) -> DeviceHealth | None:
        uuids = self._uuids()
        if not uuids:
            return None
        return DeviceHealth(
            uuids,
            tell=lambda words, invalid: self._write(lambda recorder: recorder.health(words, invalid=invalid)),
            fail=self._unwatched,
            siblings=self._siblings,
        )

    def _unwatched(self, error: BaseException) -> None:
        self._errors.report("the device is not watched for throttling and other processes", error, kind="device")

    def _end(self, outcome: Outcome, error: str | None = None) -> None:
        self.first_batch_ended()
        self._add(self._late.finish())
        health, self._health = self._health, None
        if health is not None:
            health.finish()
            health.close()
        load = self._load_seen()
        self._write(
            lambda recorder: recorder.ends(
                outcome,
                error=error,
                peak_device_bytes=end_peak(self._device),
                other_cpu_share=load.other_cpu_share,
                cpu_throttled_share=load.cpu_throttled_share,
            )
        )

    def _load_seen(self) -> LoadSeen:
        load, self._load = self._load, None
        try:
            return load.seen() if load is not None else LoadSeen()
        except Exception as error:
            self._errors.report("the load of the machine is not recorded", error)
            return LoadSeen()

    def _write(self, write: Callable[[RunRecorder], None]) -> None:
        if self._recorder is None:
            return
        try:
            write(self._recorder)
        except Exception as error:
            self._errors.report("the run record is incomplete", error)


class FitRecord(LoopRecord):
    """Records a fit of a Trainer."""

    def __init__(
        self,
        trainer: Trainer,
        module: Module,
        folder: Path | None,
        errors: ErrorReporter,
        keep_fp32: Sequence[str] = (),
        *,
        hashed: bool = True,
    ) -> None:
        self._trainer = trainer
        self._finished_epoch: int | None = None
        super().__init__(
            folder if trainer.is_global_zero else None,
            errors,
            device=trainer.strategy.root_device,
            uuids=functools.partial(gpu_uuids, trainer),
            world_size=int(trainer.world_size),
            facts={"train.keep_fp32": ", ".join(keep_fp32) or None},
            sources={
                "the training": functools.partial(training_facts, trainer),
                "the model": functools.partial(model_facts, module, hashed=hashed),
                "the data": functools.partial(data_facts, trainer, hashed=hashed),
            },
            later={"its surroundings": functools.partial(surroundings_facts, trainer)},
        )

    def on_epoch_end(self) -> None:
        """Note that an epoch has ended. Its metrics are complete when the next epoch or the end of training comes."""
        self._finished_epoch = int(self._trainer.current_epoch)

    def finish(self) -> None:
        """Record the last epoch."""
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
