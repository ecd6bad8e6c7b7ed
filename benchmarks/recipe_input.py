"""How fast the recipe's input path feeds the model: pictures a second, beside the model alone on a resident batch.

Arms, each a fit of its own in this process, alternating in rounds of random order:

- model: the same batch again and again, on the device already;
- memory: ``--input memory``, decoded once;
- memory, moved: the same with ``--augment``, on the device;
- files: ``--input files``, decoded whenever a picture is drawn.

What counts is the ratio to the model alone in the same round: the median of Walsh averages of the rounds' logarithms,
with its signed-rank interval, which a disturbed round moves little. Where the model runs on the CPU and the loader has
no workers, the CPU time of the process is all the work there is, and other work on the machine disturbs it least.

Run as ``python -m benchmarks.recipe_input [--data FOLDER] [--model NAME]``: prints a table, and writes it and the raw
times to ``benchmarks/results/``.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.quiet import QUIET_TRAINER, be_quiet
from benchmarks.step_clock import StepClock
from benchmarks.versions import device_name, versions_text
from lightning_perf.tune.ratio import time_ratio
from recipes.signlang.data_module import SignData, default_workers
from recipes.signlang.image_set import read_image_set
from recipes.signlang.module import SignModule
from recipes.signlang.picture_data import Batch
from recipes.signlang.settings import InputKind
from recipes.signlang.split import SplitKind, split_images
from recipes.signlang.synthetic import SyntheticSet, default_cache_dir, ensure_synthetic

RESULTS = Path(__file__).parent / "results"
METHOD = 2
"""Version of the method: figures of different versions are not comparable."""

ARMS = ("model", "memory", "memory, moved", "files")
WARM_UP_STEPS = 10


@dataclass(frozen=True)
class Fit:
    """One fit.

    Attributes:
        arm: One of `ARMS`.
        round: Number of the round.
        pictures_per_s: Over the steps after the warm-up, wall time.
        cpu_ms: CPU time of the process for a picture, over the same steps.
    """

    arm: str
    round: int
    pictures_per_s: float
    cpu_ms: float


class Resident(IterableDataset[Batch]):
    """One batch for ever."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self._batch


def fit(arm: str, number: int, options: argparse.Namespace, data: dict[str, SignData], classes: tuple[str, ...]) -> Fit:
    """Train a while and time it."""
    torch.manual_seed(number)
    module = SignModule(options.model, classes, options.image_size)
    clock = StepClock(WARM_UP_STEPS)
    trainer = pl.Trainer(
        max_steps=WARM_UP_STEPS + options.steps,
        devices=1,
        precision=options.precision,
        limit_val_batches=0,
        callbacks=[clock],
        **QUIET_TRAINER,
    )
    if arm == "model":
        device = trainer.strategy.root_device
        pictures, labels = next(iter(data["memory"].train_dataloader()))
        batch = (pictures.to(device), labels.to(device))
        trainer.fit(module, DataLoader(Resident(batch), batch_size=None))
    else:
        trainer.fit(module, datamodule=data[arm])
    seen = options.steps * options.batch_size
    return Fit(arm, number, seen / clock.seconds, 1e3 * clock.cpu_seconds / seen)


def table(fits: list[Fit]) -> list[str]:
    """A row an arm: median rate, its ratio to the model alone, and the CPU time's ratio to the model alone."""
    lines = [
        "| input | pictures/s, median | of the model alone (95 % interval) | CPU time, likewise |",
        "|---|---|---|---|",
    ]
    of_arm = {arm: [one for one in fits if one.arm == arm] for arm in ARMS}
    rates = {arm: [one.pictures_per_s for one in own] for arm, own in of_arm.items()}
    cpu = {arm: [one.cpu_ms for one in own] for arm, own in of_arm.items()}
    for arm in ARMS:
        median = f"{statistics.median(rates[arm]):,.0f}"
        if arm == "model":
            lines.append(f"| model alone, resident batch | {median} | 1 | 1 |")
        else:
            lines.append(
                f"| {arm} | {median} | {_ratio(rates['model'], rates[arm])} | {_ratio(cpu['model'], cpu[arm])} |"
            )
    return lines


def _ratio(base: list[float], own: list[float]) -> str:
    ratio = time_ratio(base, own)
    spread = f" ({ratio.low:.3f} – {ratio.high:.3f})" if ratio.low is not None else ""
    return f"{ratio.value:.3f}{spread}"


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of pictures (default: the synthetic set)")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write (default: benchmarks/results)")
    options = parser.parse_args()
    be_quiet()
    path = options.data or ensure_synthetic(SyntheticSet(seed=0, size=options.image_size), default_cache_dir())
    images = read_image_set(path, options.image_size)
    split = split_images(images, SplitKind.CAPTURE, 0.2, seed=0)
    kinds = {
        "memory": (InputKind.MEMORY, False),
        "memory, moved": (InputKind.MEMORY, True),
        "files": (InputKind.FILES, False),
    }
    data = {
        arm: SignData(images, split, options.batch_size, default_workers(kind), input_kind=kind, moved=moved)
        for arm, (kind, moved) in kinds.items()
    }
    order = random.Random(0)
    fits = []
    for number in range(options.rounds):
        for arm in order.sample(ARMS, len(ARMS)):
            fits.append(fit(arm, number, options, data, images.classes))
            print(f"round {number}  {arm:14} {fits[-1].pictures_per_s:10,.0f} pictures/s", flush=True)
    text = (
        f"# The recipe's input path\n\nWritten by `python -m benchmarks.recipe_input`, method {METHOD}. "
        f"{options.model}, {len(images)} pictures ({images.layout}) at {options.image_size} px, batches of "
        f"{options.batch_size}, {options.precision}, {options.rounds} rounds of {options.steps} steps; workers "
        f"{default_workers()} in memory, {default_workers(InputKind.FILES)} with files; {device_name()}. "
        f"{versions_text()}.\n\n" + "\n".join(table(fits)) + "\n"
    )
    print(text)
    target = options.results / "recipe_input"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_suffix(".md").write_text(text, encoding="utf-8")
    target.with_suffix(".json").write_text(json.dumps([asdict(one) for one in fits], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
