"""Does the advice hold what it promises? The recipe with a fault planted in it, and the same with the advice followed.

For each fault: a fit is profiled, a finding has to name the fault, its advice is followed, and fits with and without
it alternate in rounds, unprofiled. The mean of the rounds' gains is then set against the saving that the finding
predicted.

- slow dataset: each picture takes a while to come, and nobody fetches ahead;
- sync every step: the loss is asked for in the middle of each step;
- tiny batches: two pictures at a time, so that kernels are shorter than their launches;
- FP32 only: a device that multiplies 16-bit numbers many times faster is kept from it.

The first shows on any machine, the others need a CUDA GPU: without one their rows say so.

Run as ``python -m benchmarks.planted``: prints a table, and writes it to ``benchmarks/results/planted.md``.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.step_clock import StepClock
from lightning_perf import PerfCallback
from lightning_perf.compare.statistics.location import interval, paired_difference
from lightning_perf.environment import cpu_name, version_facts
from lightning_perf.findings.finding import Finding
from lightning_perf.report.build import build_report
from recipes.signlang.image_set import read_image_set
from recipes.signlang.module import SignModule
from recipes.signlang.picture_data import Batch, MemoryPictures
from recipes.signlang.synthetic import SyntheticSet, default_cache_dir, ensure_synthetic

RESULTS = Path(__file__).parent / "results" / "planted.md"
METHOD = 1
"""Version of the method: figures of different versions are not comparable."""

PictureData = tuple[Tensor, Tensor, tuple[str, ...]]
"""Pictures, ``(m, size, size)`` of uint8, their labels, and the names of those."""

WARM_UP_STEPS = 10
IMAGE_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How the recipe is trained.

    Attributes:
        model: The network.
        batch_size: Pictures a batch.
        seconds_a_picture: Added to the time that a picture takes to come.
        workers: Worker processes of the DataLoader.
        syncs: Whether each step asks for its loss on the host.
        compiles: Whether the network is compiled, with CUDA graphs.
        precision: The Trainer's.
        tf32: Whether FP32 products may use TF32.
    """

    model: str
    batch_size: int
    seconds_a_picture: float = 0.0
    workers: int = 0
    syncs: bool = False
    compiles: bool = False
    precision: str = "32-true"
    tf32: bool = True


@dataclass(frozen=True)
class Plant:
    """A fault and what its advice makes of it.

    Attributes:
        name: In words.
        finding: Kind of the finding that has to name it.
        advice: The advice that is followed, in words.
        before: With the fault.
        after: With the advice followed.
        needs_gpu: Whether it shows on a CUDA GPU only.
    """

    name: str
    finding: str
    advice: str
    before: Setup
    after: Setup
    needs_gpu: bool = True


PLANTS = (
    Plant(
        "slow dataset",
        "input-bound",
        "num_workers=4",
        Setup(model="cnn", batch_size=8, seconds_a_picture=0.01),
        Setup(model="cnn", batch_size=8, seconds_a_picture=0.01, workers=4),
        needs_gpu=False,
    ),
    Plant(
        "sync every step",
        "sync-points",
        "no .item() in the step",
        Setup(model="resnet18", batch_size=64, precision="bf16-mixed", syncs=True),
        Setup(model="resnet18", batch_size=64, precision="bf16-mixed"),
    ),
    Plant(
        "tiny batches",
        "launch-bound",
        'torch.compile(mode="reduce-overhead")',
        Setup(model="resnet18", batch_size=2),
        Setup(model="resnet18", batch_size=2, compiles=True),
    ),
    Plant(
        "FP32 only",
        "half-precision",
        'precision="bf16-mixed"',
        Setup(model="resnet50", batch_size=256, tf32=False),
        Setup(model="resnet50", batch_size=256, tf32=False, precision="bf16-mixed"),
    ),
)


class SlowPictures(Dataset[Batch]):
    """Pictures that take their time, as from a slow disk: waiting keeps no core busy."""

    def __init__(self, pictures: MemoryPictures, seconds_a_picture: float) -> None:
        self._pictures, self._seconds = pictures, seconds_a_picture

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> Batch:
        time.sleep(self._seconds)
        return self._pictures[index]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        time.sleep(self._seconds * len(indices))
        return self._pictures.__getitems__(indices)


class PlantedModule(SignModule):
    """The recipe's module; on request it asks for its loss in the middle of each step."""

    syncs = False

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Loss of a batch."""
        loss = super().training_step(batch, batch_idx)
        if self.syncs:
            self.latest_loss = loss.item()
        return loss


def _as_is(batch: Any) -> Any:
    return batch


def fit(setup: Setup, data: PictureData, callback: pl.Callback, steps: int) -> None:
    """Train the recipe for some steps."""
    pictures, labels, classes = data
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = setup.tf32
    module = PlantedModule(setup.model, classes, IMAGE_SIZE)
    module.syncs = setup.syncs
    if setup.compiles:
        module.network = torch.compile(module.network, mode="reduce-overhead")  # type: ignore[assignment]
    rows = torch.arange(setup.batch_size * steps) % len(pictures)  # as long as the fit: no end of an epoch in it
    memory = MemoryPictures(pictures, labels, rows)
    dataset: Dataset[Batch] = SlowPictures(memory, setup.seconds_a_picture) if setup.seconds_a_picture else memory
    loader = DataLoader(
        dataset,
        setup.batch_size,
        num_workers=setup.workers,
        persistent_workers=setup.workers > 0,
        pin_memory=torch.cuda.is_available(),
        collate_fn=_as_is,
    )
    trainer = pl.Trainer(
        max_epochs=1,
        precision=setup.precision,  # type: ignore[arg-type]
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
    )
    trainer.fit(module, loader)


def profile(plant: Plant, data: PictureData) -> tuple[Finding, ...]:
    """The findings of a profiled fit with the fault."""
    with tempfile.TemporaryDirectory() as folder:
        fit(plant.before, data, PerfCallback(skip_first=20, dirpath=folder, print_report=False), 40)
        return build_report(sorted(Path(folder).glob("rank*.pt.trace.json.gz"))).findings


def step_ms(setup: Setup, steps: int, data: PictureData) -> float:
    """Mean step of an unprofiled fit, after its warm-up."""
    clock = StepClock(WARM_UP_STEPS)
    fit(setup, data, clock, WARM_UP_STEPS + steps)
    return clock.seconds * 1e3 / steps


def row(plant: Plant, options: argparse.Namespace, data: PictureData) -> str:
    """Profile, follow the advice, measure, and compare with the prediction."""
    head = f"| {plant.name} | `{plant.finding}` | {plant.advice} "
    if plant.needs_gpu and not torch.cuda.is_available():
        return head + "| needs a CUDA GPU | | | | |"
    findings = profile(plant, data)
    found = next((one for one in findings if one.kind == plant.finding), None)
    if found is None or found.saving_low_ms is None or found.saving_high_ms is None:
        return head + f"| not named; found: {', '.join(one.kind for one in findings) or 'nothing'} | | | | |"
    rank = findings.index(found) + 1
    before: list[float] = []
    after: list[float] = []
    for number in range(options.rounds):
        for setup in (plant.before, plant.after) if number % 2 else (plant.after, plant.before):
            (before if setup is plant.before else after).append(step_ms(setup, options.steps, data))
    estimate = interval(paired_difference(after, before))
    inside = estimate.value is not None and found.saving_low_ms <= estimate.value <= found.saving_high_ms
    outside = (estimate.high is not None and estimate.high < found.saving_low_ms) or (
        estimate.low is not None and estimate.low > found.saving_high_ms
    )
    verdict = "yes" if inside else "**no**" if outside else "cannot be told"
    spread = f" ({estimate.low:.2f} – {estimate.high:.2f})" if estimate.low is not None else ""
    return head + (
        f"| yes, number {rank} | {sum(before) / len(before):.2f} → {sum(after) / len(after):.2f} "
        f"| {found.saving_low_ms:.2f} – {found.saving_high_ms:.2f} | {estimate.value:.2f}{spread} "
        f"| {verdict} |"
    )


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="fits of each setup (default: 6)")
    parser.add_argument("--steps", type=int, default=60, help="timed steps a fit (default: 60)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # leave cores to the workers
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    images = read_image_set(ensure_synthetic(SyntheticSet(seed=0, size=IMAGE_SIZE), default_cache_dir()), IMAGE_SIZE)
    data = (torch.from_numpy(images.pictures), torch.from_numpy(images.labels), images.classes)
    rows = []
    for plant in PLANTS:
        rows.append(row(plant, options, data))
        print(rows[-1], flush=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else cpu_name()
    facts = version_facts().items()
    versions = ", ".join(f"{name.removeprefix('version.')} {value}" for name, value in facts if value is not None)
    text = (
        f"# Planted faults\n\nWritten by `python -m benchmarks.planted`, method {METHOD}: the sign-language recipe "
        "with a fault, and with the advice of the finding followed. "
        f"{options.rounds} rounds of {options.steps} steps each, alternating; {device}. {versions}.\n\n"
        "| fault | finding | advice followed | named | step, ms | predicted saving, ms | gain, ms (95 % interval) "
        "| inside |\n|---|---|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
