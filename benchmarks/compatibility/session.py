"""One training of a program in this process, with or without the measurement, and a stopwatch of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SKIPPED_STEPS = 20
"""Steps at the start of a training that the median leaves out: they allocate and compile, and the profiler records."""


@dataclass(frozen=True)
class Outcome:
    """The result of one process.

    Attributes:
        weights: Hash of the trained weights.
        metrics: Final metrics, as hexadecimal numbers, so that equal text means equal bits.
        steps: Optimizer steps by the stopwatch, which knows nothing of lightning_perf.
        step_ms: Median wall time between the ends of two steps, by the stopwatch.
        step_cpu_ms: Median processor time of the process between the ends of two steps.
        recorded_steps: Steps in the step log of lightning_perf; None without the measurement.
        timer_ratio: Step time by lightning_perf over that of the stopwatch, the median over the steps.
        breakdown_error_ns: The largest difference between a recorded step and the sum of its categories.
        account_error_ns: The difference between the wall time of the fit and the sum of its groups; None for a loop
            without a Trainer, which has no account.
        where: The verdict's first sentences.
        categories_ms: Mean time of each category in the recorded steps.
        phases_ms: The same of each phase.
        findings: The kind of each finding, with its saving as shares of the step.
        warnings: Warnings of lightning_perf.
        error: The last line of the traceback, if the program failed.
    """

    weights: str = ""
    metrics: Mapping[str, str] = field(default_factory=dict)
    steps: int = 0
    step_ms: float = 0.0
    step_cpu_ms: float = 0.0
    recorded_steps: int | None = None
    timer_ratio: float | None = None
    breakdown_error_ns: int | None = None
    account_error_ns: int | None = None
    where: str = ""
    categories_ms: Mapping[str, float] = field(default_factory=dict)
    phases_ms: Mapping[str, float] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str = ""


class _Unmeasured:
    """Replaces `PerfLoop` in a training without the measurement."""

    def steps(self, loader: Any) -> Iterator[Any]:
        return iter(loader)

    def log(self, metrics: Mapping[str, object]) -> None:
        pass


class Session:
    """Gives a program its callbacks or its loop, and counts and times its steps.

    Attributes:
        folder: An empty folder for the files of the program.
        measured: Whether lightning_perf measures the training.
        metrics: Final metrics, by name.
        ends: Wall and processor time of this process at the end of each step.
    """

    def __init__(self, folder: Path, *, measured: bool) -> None:
        self.folder = folder
        self.measured = measured
        self.metrics: dict[str, str] = {}
        self.ends: list[tuple[float, float]] = []

    @property
    def perf_folder(self) -> Path:
        """The folder of the measurement."""
        return self.folder / "perf"

    def step_ended(self) -> None:
        """Note the end of a step."""
        self.ends.append((time.perf_counter(), time.process_time()))

    def record_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Note final metrics, bit by bit."""
        self.metrics.update({str(name): float(value).hex() for name, value in metrics.items()})

    def callbacks(self) -> list[Any]:
        """Return the callbacks of a Lightning Trainer."""
        return [current_clock(), *([current_perf_callback()] if self.measured else [])]

    def trainer_options(self, *without: str, **more: Any) -> dict[str, Any]:
        """Return the arguments of a quiet Lightning Trainer.

        Args:
            without: Arguments to leave out, because the package sets them itself.
            more: Further arguments.
        """
        options = {
            "callbacks": self.callbacks(),
            "default_root_dir": str(self.folder),
            "accelerator": "auto",
            "devices": 1,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
            "logger": False,
            **more,
        }
        return {name: value for name, value in options.items() if name not in without}

    def loop(self, model: Any, optimizer: Any) -> contextlib.AbstractContextManager[Any]:
        """Return a `PerfLoop`, or its stand-in without the measurement."""
        if not self.measured:
            return contextlib.nullcontext(_Unmeasured())
        from lightning_perf import PerfLoop

        return PerfLoop(model, optimizer, dirpath=self.perf_folder, report="none")

    def transformers_callbacks(self) -> list[Any]:
        """Return the callbacks of a Trainer of Hugging Face."""
        import transformers

        session = self

        class Clock(transformers.TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, *_: Any, **__: Any) -> None:
                session.step_ended()

        if not self.measured:
            return [Clock()]
        from lightning_perf import PerfTrainerCallback

        return [Clock(), PerfTrainerCallback(dirpath=self.perf_folder, report="none")]


def lightning_module(network: Any, loss: Callable[[Any, Any], Any], optimizers: Callable[[Any], Any]) -> Any:
    """Return a module of Lightning that trains a network and logs its loss.

    Args:
        loss: Takes the network and a batch.
        optimizers: Takes the parameters, and returns the same as `configure_optimizers`.
    """
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def training_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002
            value = loss(self.network, batch)
            self.log("loss", value)
            return value

        def configure_optimizers(self) -> Any:
            return optimizers(self.parameters())

    return Module()


_current: list[Session] = []
"""The session of this process: packages copy callbacks, or make them from a configuration."""


def current_clock() -> Any:
    """Return a callback for Lightning that notes the steps and metrics of the session of this process."""
    # The second package takes seconds to import, so only a program that uses it gets it.
    packages = [sys.modules[name] for name in ("lightning.pytorch", "pytorch_lightning") if name in sys.modules]
    bases: Any = type("Bases", tuple(package.Callback for package in packages), {})

    class Clock(bases):  # type: ignore[misc]
        seen = 0

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            if trainer.global_step != self.seen:  # two optimizers in one batch count twice there
                self.seen = trainer.global_step
                _current[-1].step_ended()

        def on_fit_end(self, trainer: Any, _: Any) -> None:
            _current[-1].record_metrics(trainer.callback_metrics)

    return Clock()


def current_perf_callback() -> Any:
    """Return the `PerfCallback` of the session of this process."""
    from lightning_perf import PerfCallback

    return PerfCallback(dirpath=_current[-1].perf_folder, report="none")


def measure(train: Any, folder: Path, *, measured: bool) -> Outcome:
    """Train a program in this process.

    Args:
        train: Takes a session, trains, and returns the trained module.
        folder: An empty folder.
        measured: Whether lightning_perf measures the training.
    """
    import torch

    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    session = Session(folder, measured=measured)
    _current.append(session)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = train(session)
    gaps = np.diff(np.array(session.ends), axis=0)
    kept = gaps[min(SKIPPED_STEPS, 2 * len(gaps) // 3) :]
    wall_ms, cpu_ms = (np.median(kept, axis=0) * 1e3).tolist() if len(kept) else (0.0, 0.0)
    outcome = Outcome(
        weights=_digest(module),
        metrics=session.metrics,
        steps=len(session.ends),
        step_ms=wall_ms,
        step_cpu_ms=cpu_ms,
        warnings=tuple(str(one.message).split("\n")[0] for one in caught if "Perf" in str(one.message)),
    )
    return _with_report(outcome, session.perf_folder, gaps) if measured else outcome


def _digest(module: Any) -> str:
    import torch

    digest = hashlib.sha256()
    for key, tensor in sorted(module.state_dict().items()):
        if isinstance(tensor, torch.Tensor):
            digest.update(key.encode())
            flat = tensor.detach().cpu().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return digest.hexdigest()[:16]


def _with_report(outcome: Outcome, folder: Path, gaps: Any) -> Outcome:
    from lightning_perf import analyze
    from lightning_perf.run_files.steps import STEPS

    report = analyze(folder)
    findings = []
    for found in report.findings:
        low, high, step = found.saving_low_ms, found.saving_high_ms, found.step_ms
        saving = f" ({low / step:.0%}–{high / step:.0%})" if step and low is not None and high is not None else ""
        findings.append(f"`{found.kind}`{saving}")
    account = report.fit_time
    lead = next((rank for rank in report.ranks if rank.rank == report.lead), report.ranks[0] if report.ranks else None)
    samples = [sample for path in STEPS.paths(folder) for sample in STEPS.read(path)]
    timed_s = np.array([sample.step_ns for sample in samples[1:]]) / 1e9  # the gap before the first end is unknown
    return dataclasses.replace(
        outcome,
        recorded_steps=len(samples),
        timer_ratio=float(np.median(timed_s / gaps[:, 0])) if len(timed_s) == len(gaps) > 0 else None,
        breakdown_error_ns=max((_breakdown_error(rank.breakdown) for rank in report.ranks), default=None),
        account_error_ns=(
            abs(account.wall_ns - sum(part.time_ns for group in account.groups for part in group.parts))
            if account is not None
            else None
        ),
        where=report.verdict.where,
        categories_ms=(
            {row.name: (row.mean_ns or 0.0) / 1e6 for row in lead.breakdown.categories if row.parent is None}
            if lead is not None
            else {}
        ),
        phases_ms={row.name: row.mean_ns / 1e6 for row in lead.phases.phases} if lead is not None else {},
        findings=tuple(findings),
    )


def _breakdown_error(breakdown: Any) -> int:
    rows = [row.per_step_ns for row in breakdown.categories if row.parent is None and row.per_step_ns is not None]
    walls = np.array([step.wall_ns for step in breakdown.steps])
    return int(np.abs(walls - np.sum(rows, axis=0)).max())
