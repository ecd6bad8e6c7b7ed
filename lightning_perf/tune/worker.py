"""The worker process of a tuning: it trains in short windows on request."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from lightning_perf.callbacks.lightning_compat import LightningCallback, Module, Trainer
from lightning_perf.callbacks.perf import PerfCallback
from lightning_perf.callbacks.steps.batch_parts import batch_samples
from lightning_perf.errors import TraceError, UserError
from lightning_perf.lazy_imports import find_object
from lightning_perf.machine.environment import cpu_name
from lightning_perf.run_files.probe import Probe
from lightning_perf.tune.errors import NoFitError, NoTrainingError, TrialError, describe_error
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.levers.loader import Workers, fetch_cpu_share
from lightning_perf.tune.levers.registry import LEVERS, find_lever
from lightning_perf.tune.messages import Measured, Order, Prediction, Profile, Ready, Run, Scouted, Window
from lightning_perf.tune.patches.project_copy import move_to_copy
from lightning_perf.tune.script import Calls, run_script
from lightning_perf.tune.trainers.fit import LightningTrainer
from lightning_perf.tune.training import TrialTrainer, as_training
from lightning_perf.workers.channel import Channel, Failure, StopRequestedError
from lightning_perf.workers.limits import usable_cpus

RECORDED_STEPS = 10
"""Steps that are recorded of a training on several devices, after those that are timed."""

SKIPPED_STEPS = 8  # five to warm up, and three to count page faults
WARM_UP_STEPS, PROFILED_STEPS = 2, 3

MOST_SAVING = 0.95
"""A prediction of a larger share of the step is cut off: no lever makes a step vanish."""

PROBE_S = 5.0
"""Time in which the recorded operators run again, with and without levers."""

LEAST_COVERAGE = 0.5
"""A probe counts if it measured at least this share of the time of the recorded operators."""


def profile(trainer: TrialTrainer, folder: str) -> Profile:
    """Record a few steps of a fit into a folder, and probe their operators."""
    from lightning_perf.findings.loading import advised_workers, worker_saving  # trials start faster without these
    from lightning_perf.report.build import analyze

    trainer.record(folder, skip_first=SKIPPED_STEPS, warmup=WARM_UP_STEPS, active=PROFILED_STEPS, probe_s=PROBE_S)
    traces = sorted(Path(folder).rglob("*.pt.trace.json.gz"))
    if not traces:
        return Profile(note="the profile of the training holds no steps")
    try:
        report = analyze(traces[0].parent)
    except TraceError as error:
        return Profile(note=f"the profile of the training cannot be read: {error}")
    lead = None if report.lead is None else report.ranks[report.lead]
    step_ms = report.step_times.p50_ns / 1e6 if report.step_times is not None else None
    if lead is None or not (step_ns := lead.breakdown.wall.mean_ns):
        return Profile(note="the profile of the training holds no steps", step_ms=step_ms)
    predictions = tuple(
        Prediction(
            finding.kind,
            min(finding.saving_low_ms / finding.step_ms, MOST_SAVING),
            min(finding.saving_high_ms / finding.step_ms, MOST_SAVING),
            finding.basis,
        )
        for finding in report.findings
        if finding.saving_low_ms is not None and finding.saving_high_ms is not None and finding.step_ms
    )
    workers_save = {
        lever.name: _shares(*saving_ns, step_ns)
        for lever in LEVERS
        if isinstance(lever.change, Workers) and (saving_ns := worker_saving(lead, lever.change.count)) is not None
    }
    return Profile(predictions, None, step_ms, probed_savings(lead.probe), advised_workers(lead), workers_save)


def _shares(low_ns: float, high_ns: float, step_ns: float) -> tuple[float, float]:
    """Return a least and a most saving as shares of the step."""
    return min(low_ns / step_ns, MOST_SAVING), min(high_ns / step_ns, MOST_SAVING)


def probed_savings(probe: Probe | None) -> dict[str, tuple[float, float]]:
    """Return the least and the most saving of each lever that a probe measured, as shares of the step.

    Empty if the probe measured too little, or on another device.
    """
    if probe is None or not probe.same_device or probe.step_ns <= 0:
        return {}
    if probe.covered_ns < LEAST_COVERAGE * probe.operator_ns:
        return {}
    found = {}
    for lever in LEVERS:
        change = probe.change(lever.probe) if lever.probe is not None else None
        if change is not None:
            low_ns, high_ns = sorted((change.low_ns, change.high_ns))
            found[lever.name] = _shares(low_ns, high_ns, probe.step_ns)
    return found


class Pacer(LightningCallback):
    """Waits before the first step and after each window for the next order.

    While it waits, the DataLoader's workers are stopped, too. Otherwise they would fill their queues, which makes the
    next window too fast, and take cores from the other training.

    Args:
        ask: Sends a message, and returns the next order; None to stop.

    Attributes:
        began: Whether it reached the first step.
        stopped: Whether the order was to stop.
    """

    def __init__(self, ask: Callable[[Ready | Window], Run | None]) -> None:
        self.began = self.stopped = False
        self._ask = ask
        self._from = 0
        self._until = 0
        self._began_s = self._stepped_s = self._longest_s = 0.0
        self._samples: int | None = 0
        self._step = 0
        self._micro_loss: torch.Tensor | None = None
        self._micro_batches = 0
        self._losses: list[torch.Tensor] = []

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:  # noqa: ARG002
        """Wait before the first step."""
        self.began = True
        self._begin(trainer, self._ask(Ready()))

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Note the loss; at the end of the window report it."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            # A sum has its own memory: the output of a CUDA graph is overwritten by its next replay.
            self._micro_loss = loss.detach() + (0.0 if self._micro_loss is None else self._micro_loss)
            self._micro_batches += 1
        count = batch_samples(batch)
        self._samples = None if self._samples is None or count is None else self._samples + count
        if trainer.global_step > self._step:
            self._step = trainer.global_step
            before_s, self._stepped_s = self._stepped_s, time.perf_counter()
            self._longest_s = max(self._longest_s, self._stepped_s - before_s)
            if self._micro_loss is not None:
                # Lightning has divided them by the micro-batches of a step.
                self._losses.append(self._micro_loss * (trainer.accumulate_grad_batches / self._micro_batches))
            self._micro_loss, self._micro_batches = None, 0
        if trainer.global_step < self._until or trainer.should_stop:
            return
        _finish(trainer.strategy.root_device)
        seconds = time.perf_counter() - self._began_s
        losses = tuple(float(value) for value in self._losses)
        memory = _device_memory(trainer.strategy.root_device)
        workers = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
        window = Window(
            seconds, trainer.global_step - self._from, self._samples, losses, *memory, len(workers), self._longest_s
        )
        _signal(workers, signal.SIGSTOP)
        try:
            order = self._ask(window)
        finally:
            _signal(workers, signal.SIGCONT)
        self._begin(trainer, order)

    def _begin(self, trainer: Trainer, order: Run | None) -> None:
        if order is None:
            self.stopped = trainer.should_stop = True
            return
        self._from = self._step = trainer.global_step
        self._until = self._from + order.steps
        self._samples = 0
        self._losses = []
        self._longest_s = 0.0
        self._began_s = self._stepped_s = time.perf_counter()


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _device_memory(device: torch.device) -> tuple[int | None, int | None]:
    """Return the most memory that this process has held on a device, and the memory that is free there."""
    if device.type != "cuda":
        return None, None
    return torch.cuda.max_memory_reserved(device), torch.cuda.mem_get_info(device)[0]


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def main(channel: Channel) -> None:
    """Carry out one order, in a process of its own."""
    warnings.simplefilter("ignore")
    channel.describe = describe_error
    work(channel)


def work(channel: Channel) -> None:
    """Carry out one order."""
    order = channel.receive(Order)
    carry_out = _scout if order.scout else _report_arguments if order.copy else _measure if order.devices else _train
    calls = Calls(order.script.root if order.scout and order.script is not None else None)
    if order.script is None:
        carry_out(order, channel, _load(order), calls)
        return
    script = move_to_copy(order.script, Path(order.copy)) if order.copy else order.script
    try:
        run_script(script, order.seed, lambda found: carry_out(order, channel, found, calls), channel, calls)
    except NoFitError as error:  # without a traceback, which would hide the last lines of the script
        channel.send(Failure(type(error).__name__, str(error)))


def _scout(order: Order, channel: Channel, trainer: TrialTrainer, calls: Calls) -> None:
    # Looking at the data sets them up, so it follows the fit. A script makes its training only once.
    found = profile(trainer, order.folder)
    training = trainer.training
    machine = replace(_machine(trainer.device()), fetch_cpu_share=fetch_cpu_share(training))
    changes = {lever.name: trainer.change(lever) for lever in LEVERS}
    missing = {name: change.missing(training, machine) for name, change in changes.items()}
    settings = {name: change.settings(training) for name, change in changes.items() if missing[name] is None}
    module = training.module
    elements = sum(each.numel() for each in module.parameters() if not torch.nn.parameter.is_lazy(each))
    network = f"{type(module).__qualname__}, {elements:,} parameters"
    sites = trainer.sites(calls) if order.script is not None else {}
    arguments, parameters = trainer.arguments(), trainer.parameters()
    channel.send(
        Scouted(
            machine, missing, settings, found, network, sites, calls.files(), arguments, parameters, trainer.refused()
        )
    )


def _report_arguments(order: Order, channel: Channel, trainer: TrialTrainer, _: Calls) -> None:
    """Train a step, so that the edited script is known to work, and send its arguments."""
    trainer.fit(None, order.folder, max_steps=1)
    channel.send(trainer.arguments())


def _train(order: Order, channel: Channel, trainer: TrialTrainer, _: Calls) -> None:
    # Compilation comes last: it wraps the module as the others left it.
    for lever in sorted(map(find_lever, order.levers), key=lambda lever: lever.family == "compile"):
        trainer.change(lever).apply(trainer.training)

    def ask(message: Ready | Window) -> Run | None:
        channel.send(message)
        try:
            return channel.receive(Run)
        except StopRequestedError:
            return None

    trainer.fit(pacer := Pacer(ask), order.folder)
    if not pacer.began:
        raise TrialError("the training ended before its first step: its data give no batch")
    if not pacer.stopped:
        raise TrialError("the training ended by itself, before the trial did")


def _measure(order: Order, channel: Channel, trainer: TrialTrainer, _: Calls) -> None:
    """Train on one of several devices: some steps are timed, then some recorded."""
    if not isinstance(trainer, LightningTrainer):
        raise NoTrainingError("--devices needs a Trainer of Lightning, and the script trains by one of Hugging Face")
    recorder = PerfCallback(
        skip_first=order.timed_steps,
        warmup=WARM_UP_STEPS,
        active=RECORDED_STEPS,
        repeat=1,
        dirpath=str(Path(order.folder) / "perf"),
        report="none",
        log_metrics=False,
        fingerprint="light",
        record_shapes=False,
    )
    trainer.fit_on(order.devices, recorder, order.folder, order.timed_steps + WARM_UP_STEPS + RECORDED_STEPS + 1)
    channel.send(Measured())


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name() or device.type


def _load(order: Order) -> TrialTrainer:
    """Load the training, with the weights of the seed."""
    from lightning.pytorch import seed_everything

    seed_everything(order.seed, workers=True, verbose=False)
    if order.source is not None:
        try:
            made = find_object(order.source, "PKG:NAME")
        except UserError as error:
            raise NoTrainingError(str(error)) from error
        return LightningTrainer(as_training(made() if callable(made) else made))
    import cloudpickle

    flags, training = cloudpickle.loads(order.pickled)
    flags.set()
    return LightningTrainer(as_training(training))


def _machine(device: torch.device) -> Machine:
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    return Machine(device.type, capability, usable_cpus(), _device_name(device))
