"""Plant a late rank and slow loaders in whole trainings and check the sizes; healthy trainings must raise no alarm.

Each training is a process of its own, with `PerfCallback`, and so is its twin without the fault. A clock in the
training loop that knows nothing of `PerfCallback` times both. The size that the report names for the fault must be
within 10 % of the difference. Of a disk, the worker process itself times its reads, past the page cache.

A healthy training must have no finding of `ALARMS` and no report on a hang.

Run as ``python -m benchmarks.savings.planted_fits``. It prints two tables and writes them to
``benchmarks/results/planted_fits.md``.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from msgspec import Struct
from msgspec.structs import asdict, replace
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

import lightning_perf
from benchmarks.options import make_parser, markdown_table
from benchmarks.processes import load_average, run_module
from benchmarks.quiet import QUIET_TRAINER, be_quiet
from benchmarks.step_clock import StepClock
from benchmarks.versions import device_name, versions_text
from lightning_perf import PerfCallback
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.hangs import HANGS

RESULTS = Path(__file__).parents[1] / "results" / "planted_fits.md"

ALARMS = ("straggler", "imbalance", "gc-pauses")
HANG_AFTER_S = 5.0
TOLERANCE = 0.10
WARM_UP = 20
READ_BYTES = 4 << 20


class Fit(Struct, frozen=True):
    """A training on the processor.

    Attributes:
        first_step_s: Time for which the first step sleeps.
        late_s: Time for which the last rank sleeps in every forward pass.
        slow_s: Time for which the data set sleeps for a batch, in worker process 1 only if there are several.
        reads_s: Time for which the data set reads from the disk for a batch.
    """

    name: str
    model: str = "MLP"
    ranks: int = 1
    steps: int = 150
    workers: int = 0
    validation: bool = False
    accumulation: int = 1
    checkpoints: bool = False
    first_step_s: float = 0.0
    late_s: float = 0.0
    slow_s: float = 0.0
    reads_s: float = 0.0


Sizes: TypeAlias = tuple[float, float]
"""A size in the report, and the same by another clock."""


class Plant(Struct, frozen=True):
    """A fault, and how its size is read from the report and from the clocks of the training and its twin."""

    fit: Fit
    finding: str
    figure: str
    sizes: Callable[[PerfReport, dict[str, Any], dict[str, Any]], Sizes]


def late_rank(report: PerfReport, faulty: dict[str, Any], _: dict[str, Any]) -> Sizes:
    """Return by how much the last rank is late, and how long it slept."""
    assert report.over_fit is not None
    assert report.over_fit.straggler is not None
    assert report.over_fit.straggler.rank == report.over_fit.ranks[-1].rank
    return report.over_fit.straggler.late_ns / 1e6, 1e3 * faulty["slept_s"]


def wait(report: PerfReport, faulty: dict[str, Any], twin: dict[str, Any]) -> Sizes:
    """Return the wait for data per step, and by how much the step is longer than that of the twin."""
    assert report.step_times is not None
    return report.step_times.data_wait_mean_ns / 1e6, 1e3 * (faulty["step_s"] - twin["step_s"])


def slow_worker(report: PerfReport, faulty: dict[str, Any], twin: dict[str, Any]) -> Sizes:
    """Return the same for one slow worker process, which the report must name."""
    assert report.memory_growth is not None
    assert report.memory_growth.worker is not None
    assert report.memory_growth.worker.slow == 1
    return wait(report, faulty, twin)


def disk(report: PerfReport, faulty: dict[str, Any], _: dict[str, Any]) -> Sizes:
    """Return the share of the worker's time in waits for the disk, and that by its own clock around each read."""
    assert report.memory_growth is not None
    assert report.memory_growth.worker is not None
    return 100 * (report.memory_growth.worker.disk_wait or 0.0), 100 * faulty["read_share"]


PLANTS = (
    Plant(Fit("late rank of 2", ranks=2, late_s=0.03), "straggler", "late by, ms", late_rank),
    Plant(Fit("late rank of 4", ranks=4, late_s=0.03), "straggler", "late by, ms", late_rank),
    Plant(Fit("sleep in the loader", slow_s=0.03), "input-bound", "wait, ms per step", wait),
    Plant(Fit("one slow worker of 3", workers=3, slow_s=0.12), "input-bound", "wait, ms per step", slow_worker),
    Plant(Fit("reads from a disk", workers=1, reads_s=0.04), "input-bound", "waits for the disk, %", disk),
)

HEALTHY = (
    Fit("MLP"),
    Fit("MLP, workers, validation", workers=2, validation=True),
    Fit("MLP, long first step", first_step_s=3.0),
    Fit("CNN, accumulation", "CNN", accumulation=4),
    Fit("CNN, checkpoints", "CNN", checkpoints=True),
    Fit("language model", "language"),
    Fit("MLP on 2 ranks", ranks=2),
    Fit("CNN on 2 ranks, validation, long first step", "CNN", ranks=2, validation=True, first_step_s=3.0),
    Fit("language model on 2 ranks, workers", "language", ranks=2, workers=1),
    Fit("MLP on 2 ranks, accumulation, checkpoints", ranks=2, accumulation=2, checkpoints=True),
)


class Batches(Dataset[Any]):
    """Whole batches of one size. Making them takes time as planted."""

    def __init__(self, fit: Fit, folder: Path) -> None:
        self._fit, self._folder = fit, folder
        self._blocked_s = self._began_s = 0.0
        shape = {"MLP": (16, 64), "CNN": (8, 3, 32, 32), "language": (8, 64)}[fit.model]
        whole = fit.model == "language"
        self._inputs = torch.randint(100, shape) if whole else torch.randn(shape)

    def __len__(self) -> int:
        return self._fit.steps * self._fit.accumulation * self._fit.ranks

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if self._fit.slow_s and (info is None or info.num_workers < 2 or info.id == 1):
            time.sleep(self._fit.slow_s)
        if self._fit.reads_s:
            self._read()
        return {"input_ids": self._inputs, "labels": self._inputs} if self._fit.model == "language" else self._inputs

    def _read(self) -> None:
        """Read past the page cache, and note the share of this process's time in which reads kept it from running."""
        self._began_s = self._began_s or time.perf_counter()
        path, buffer = self._folder / "numbers.bin", mmap.mmap(-1, READ_BYTES)
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        start_s, used_s = time.perf_counter(), _runnable_s()
        offset = 0
        while time.perf_counter() < start_s + self._fit.reads_s:
            os.preadv(file, [buffer], offset)
            offset = (offset + READ_BYTES) % path.stat().st_size
        end_s = time.perf_counter()
        self._blocked_s += end_s - start_s - (_runnable_s() - used_s)
        os.close(file)
        share = self._blocked_s / (end_s - self._began_s)
        (self._folder / "reads.json").write_text(json.dumps({"read_share": share}))


def _runnable_s() -> float:
    """Return the time for which this process ran or waited for a core."""
    running_ns, waiting_ns, _ = Path("/proc/self/schedstat").read_text().split()
    return (int(running_ns) + int(waiting_ns)) / 1e9


class Module(pl.LightningModule):
    """A small model. On the last rank it is late as planted."""

    def __init__(self, fit: Fit) -> None:
        super().__init__()
        self._fit = fit
        self.slept_s: list[float] = []
        self.net: nn.Module = {
            "MLP": lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)),
            "CNN": lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(1)),
            "language": lambda: nn.Sequential(
                nn.Embedding(100, 64), nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), nn.Linear(64, 100)
            ),
        }[fit.model]()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Sleep as planted, and return the loss."""
        if self._fit.first_step_s and batch_idx == 0:
            time.sleep(self._fit.first_step_s)
        if self._fit.late_s and self.global_rank == self.trainer.world_size - 1:
            start_s = time.perf_counter()
            time.sleep(self._fit.late_s)
            self.slept_s.append(time.perf_counter() - start_s)
        return self._loss(batch)

    def validation_step(self, batch: Any, *_: int) -> None:
        """Compute the loss."""
        self._loss(batch)

    def _loss(self, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = self.net(batch["input_ids"] if isinstance(batch, dict) else batch).float().pow(2).mean()
        return loss

    def configure_optimizers(self) -> Any:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), 1e-4)


def train(fit: Fit, folder: Path) -> None:
    """Train in this process, and note the clocks in the folder."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if fit.reads_s and not (folder / "numbers.bin").exists():
        (folder / "numbers.bin").write_bytes(os.urandom(16 * READ_BYTES))

    def loader() -> DataLoader[Any]:
        return DataLoader(
            Batches(fit, folder), batch_size=None, num_workers=fit.workers, persistent_workers=fit.workers > 0
        )

    clock, module = StepClock(WARM_UP), Module(fit)
    watched = PerfCallback(active=2, repeat=1, dirpath=folder / "perf", report="none", hang_after=HANG_AFTER_S)
    callbacks: list[pl.Callback] = [watched, clock]
    if fit.checkpoints:
        callbacks.append(ModelCheckpoint(folder / "checkpoints", every_n_train_steps=25))
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=fit.ranks,
        strategy="ddp" if fit.ranks > 1 else "auto",
        accumulate_grad_batches=fit.accumulation,
        limit_val_batches=5 if fit.validation else 0,
        val_check_interval=0.5 if fit.validation else None,
        callbacks=callbacks,
        **QUIET_TRAINER | {"enable_checkpointing": fit.checkpoints},
    )
    trainer.fit(module, loader(), loader() if fit.validation else None)
    figures = {"step_s": clock.seconds / (fit.steps - WARM_UP)}
    if module.slept_s:
        figures["slept_s"] = sorted(module.slept_s)[len(module.slept_s) // 2]
    (folder / f"clock{trainer.global_rank}.json").write_text(json.dumps(figures))


def run(fit: Fit, folder: Path) -> tuple[PerfReport, dict[str, Any]]:
    """Train in a process of its own, and return the report and the clocks of its processes."""
    order, environment = json.dumps(asdict(fit)), {**os.environ, "OMP_NUM_THREADS": "1"}
    run_module("benchmarks.savings.planted_fits", "--fit", order, folder, environment=environment)
    clocks: dict[str, Any] = {}
    for path in sorted((*folder.glob("clock*.json"), *folder.glob("reads.json"))):
        clocks |= json.loads(path.read_text())
    return lightning_perf.analyze(folder / "perf"), clocks


def kinds(report: PerfReport) -> set[str]:
    """Return the rules of all findings."""
    return {finding.kind for finding in (*report.findings, *report.fit_findings)}


def planted_rows(only: str) -> Iterator[tuple[str, ...]]:
    """Yield a row per fault."""
    for plant in PLANTS:
        if only not in plant.fit.name:
            continue
        twin = replace(plant.fit, late_s=0.0, slow_s=0.0, reads_s=0.0)
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            report, faulty = run(plant.fit, Path(one))
            _, clocks = run(twin, Path(two))
        named = "yes" if plant.finding in kinds(report) else "no"
        found, truth = plant.sizes(report, faulty, clocks)
        within = "yes" if abs(found / truth - 1) <= TOLERANCE else "no"
        sizes = f"{found:.1f}", f"{truth:.1f}", f"{found / truth - 1:+.1%}", within
        yield plant.fit.name, f"`{plant.finding}`", named, plant.figure, *sizes


def healthy_rows(only: str) -> Iterator[tuple[str, ...]]:
    """Yield a row per healthy training."""
    for fit in HEALTHY:
        if only not in fit.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            report, clocks = run(fit, Path(folder))
            hangs = ["a report on a hang"] * bool(HANGS.paths(Path(folder) / "perf"))
        alarms = [f"`{kind}`" for kind in ALARMS if kind in kinds(report)] + hangs
        yield fit.name, f"{1e3 * clocks['step_s']:.1f}", ", ".join(alarms) or "none"


def main() -> None:
    """Measure, print and write."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("--only", default="", metavar="TEXT", help="only trainings with TEXT in the name; no file")
    parser.add_argument("--fit", nargs=2, help="train as described by JSON, with results in a folder (for itself)")
    options = parser.parse_args()
    be_quiet()
    if options.fit:
        train(Fit(**json.loads(options.fit[0])), Path(options.fit[1]))
        return
    rows: dict[str, list[tuple[str, ...]]] = {"planted": [], "healthy": []}
    for name, found in (("planted", planted_rows(options.only)), ("healthy", healthy_rows(options.only))):
        for row in found:
            rows[name].append(row)
            print(*row, sep=" | ", flush=True)
    if not options.only:
        options.results.write_text(page(rows), encoding="utf-8")


def page(rows: dict[str, list[tuple[str, ...]]]) -> str:
    """Return the page of the results."""
    alarms = ", ".join(f"`{kind}`" for kind in ALARMS)
    heads = ("fault", "finding", "found", "size", "in the report", "by the clock", "difference", "right")
    return (
        "# Planted faults of whole trainings\n\nWritten by `python -m benchmarks.savings.planted_fits`: trainings of "
        f"150 steps on {device_name()}, one thread per process; load average {load_average()} at the end, this "
        f"benchmark's own part in it. {versions_text()}.\n\n"
        "A size is right if it is within 10 % of that by a clock of the training itself: the sleep of the late rank, "
        "the step without the fault, or the worker's own time in reads.\n\n"
        f"{markdown_table(heads, rows['planted'])}\n\n"
        f"## Healthy trainings\n\nNone of {alarms} may appear, and no report on a hang with "
        f"`hang_after={HANG_AFTER_S:.0f}`.\n\n"
        f"{markdown_table(('training', 'step, ms', 'alarms'), rows['healthy'])}\n"
    )


if __name__ == "__main__":
    main()
