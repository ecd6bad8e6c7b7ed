"""Measure how fast the recipe feeds the model: pictures per second, compared with the model on a resident batch.

Sources of batches:

- model: the same batch each time, which stays on the device;
- memory: ``--input memory``, decoded once;
- memory, moved: the same with ``--augment``, on the device;
- files: ``--input files``, decoded whenever a picture is drawn.

They alternate in one fit, each for a window of steps, in random order within a round. Separate fits would differ by
more than the effect. The first steps of a window are not timed, because workers have filled their queues in the
meantime. The main figure is the ratio to the model alone in the same round. It is the median of Walsh averages of the
rounds' logarithms with its signed-rank interval, which a disturbed round hardly moves. If the model runs on the CPU
without loader workers, the CPU time of the process includes all work, and other work on the machine disturbs it least.

Run as ``python -m benchmarks.training.recipe_input [--data FOLDER] [--model NAME]``: prints a table, and writes it and
the raw times to ``benchmarks/results/``.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.options import make_parser
from benchmarks.quiet import QUIET_TRAINER, be_quiet
from benchmarks.versions import device_name, versions_text
from lightning_perf.statistics.exact import walsh_ratio
from recipes.signlang.data.data_module import Batch, SignData, augment, default_workers
from recipes.signlang.data.image_set import read_image_set
from recipes.signlang.data.split import split_images
from recipes.signlang.settings import InputKind, SplitKind
from recipes.signlang.synthetic.dataset import SyntheticSet, default_cache_dir, ensure_synthetic
from recipes.signlang.training.module import SignModule

RESULTS = Path(__file__).parents[1] / "results"
METHOD = 3
"""Version of the method: figures of different versions are not comparable."""

MODEL, MEMORY, MOVED, FILES = ARMS = ("model", "memory", "memory, moved", "files")
WARM_UP_STEPS = 20
SKIPPED_STEPS = 8
"""Steps at the start of a window that are not timed."""


@dataclass(frozen=True)
class Window:
    """Some steps with batches from one source.

    Attributes:
        arm: One of `ARMS`.
        round: Number of the round.
        pictures_per_s: By wall time.
        cpu_ms: CPU time of the process for a picture.
    """

    arm: str
    round: int
    pictures_per_s: float
    cpu_ms: float


class Turns(pl.LightningDataModule):
    """Batches of all arms, in alternating windows.

    Args:
        data: Where the batches of an arm come from.
        resident: The batch of the model alone.
        turns: The arms in their order; the warm-up comes before them, with the first of them.
        steps: Steps of a window.
    """

    def __init__(self, data: dict[str, SignData], resident: Batch, turns: list[str], steps: int) -> None:
        super().__init__()
        self._data, self._resident, self._turns, self._steps = data, resident, turns, steps
        self._arm = turns[0]

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return one loader that passes on the batches of the arms' loaders."""
        return DataLoader(_Stream(self._batches, WARM_UP_STEPS + self._steps * len(self._turns)), batch_size=None)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:  # noqa: ARG002
        """Move the pictures a little, when it is their turn."""
        return (augment(batch[0]), batch[1]) if self._arm == MOVED else batch

    def _batches(self) -> Iterator[Batch]:
        sources = {arm: _endless(data.train_dataloader()) for arm, data in self._data.items()}
        windows = [(self._turns[0], WARM_UP_STEPS), *((arm, self._steps) for arm in self._turns)]
        for arm, steps in windows:
            for _ in range(steps):
                batch = self._resident if arm == MODEL else next(sources[arm])
                self._arm = arm
                yield batch


class _Stream(IterableDataset[Batch]):
    """Its length is known: without one Lightning fetches a batch ahead, which would be the next window's."""

    def __init__(self, batches: Callable[[], Iterator[Batch]], length: int) -> None:
        self._batches, self._length = batches, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        return self._batches()


def _endless(loader: DataLoader[Batch]) -> Iterator[Batch]:
    while True:
        yield from loader


class WindowClock(pl.Callback):
    """Wall time, and CPU time of the process, of each window. The device has finished at both ends.

    Args:
        steps: Steps of a window.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._begin_s = (0.0, 0.0)
        self.seconds: list[tuple[float, float]] = []

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """The timed part of a window begins or ends."""
        step = trainer.global_step - WARM_UP_STEPS
        if step <= 0:
            return
        if step % self._steps == SKIPPED_STEPS:
            self._begin_s = _now_s()
        elif step % self._steps == 0:
            now_s = _now_s()
            self.seconds.append((now_s[0] - self._begin_s[0], now_s[1] - self._begin_s[1]))
            print(f"window {len(self.seconds)}  {self.seconds[-1][0]:.2f} s", flush=True)


def _now_s() -> tuple[float, float]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def measure(options: argparse.Namespace, data: dict[str, SignData], classes: tuple[str, ...]) -> list[Window]:
    """Train, and time every window."""
    order = random.Random(0)
    turns = [arm for _ in range(options.rounds) for arm in order.sample(ARMS, len(ARMS))]
    torch.manual_seed(0)
    clock = WindowClock(options.steps)
    trainer = pl.Trainer(
        max_steps=WARM_UP_STEPS + options.steps * len(turns),
        devices=1,
        precision=options.precision,
        limit_val_batches=0,
        callbacks=[clock],
        **QUIET_TRAINER,
    )
    pictures, labels = next(iter(data[MEMORY].train_dataloader()))
    device = trainer.strategy.root_device
    resident = (pictures.to(device), labels.to(device))
    module = SignModule(options.model, classes, options.image_size)
    trainer.fit(module, datamodule=Turns(data, resident, turns, options.steps))
    seen = (options.steps - SKIPPED_STEPS) * options.batch_size
    return [
        Window(arm, number // len(ARMS), seen / wall_s, 1e3 * cpu_s / seen)
        for number, (arm, (wall_s, cpu_s)) in enumerate(zip(turns, clock.seconds, strict=True))
    ]


def table(windows: list[Window]) -> list[str]:
    """Return one row per arm: median rate, and the ratios of rate and CPU time to the model alone."""
    lines = [
        "| input | pictures/s, median | of the model alone (95 % interval) | CPU time, likewise |",
        "|---|---|---|---|",
    ]
    of_arm = {arm: sorted((one for one in windows if one.arm == arm), key=lambda one: one.round) for arm in ARMS}
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
    ratio = walsh_ratio(base, own)
    spread = f" ({ratio.low:.3f} – {ratio.high:.3f})" if ratio.low is not None else ""
    return f"{ratio.value:.3f}{spread}"


def main() -> None:
    """Measure, print, and write the results."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("--data", type=Path, help="folder of pictures (default: the synthetic set)")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--rounds", type=int, default=16, help="windows of each (default: 16)")
    parser.add_argument("--steps", type=int, default=48, help="steps of a window (default: 48)")
    options = parser.parse_args()
    if options.steps <= SKIPPED_STEPS:
        parser.error(f"--steps {options.steps}: a window's first {SKIPPED_STEPS} steps are not timed, so take more")
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
    windows = measure(options, data, images.classes)
    text = (
        f"# The recipe's input path\n\nWritten by `python -m benchmarks.training.recipe_input`, method {METHOD}. "
        f"{options.model}, {len(images)} pictures ({images.layout}) at {options.image_size} px, batches of "
        f"{options.batch_size}, {options.precision}, {options.rounds} rounds of {options.steps} steps; workers "
        f"{default_workers()} in memory, {default_workers(InputKind.FILES)} with files; {device_name()}. "
        f"{versions_text()}.\n\n" + "\n".join(table(windows)) + "\n"
    )
    print(text)
    target = options.results / "recipe_input"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_suffix(".md").write_text(text, encoding="utf-8")
    raw = json.dumps([asdict(one) for one in windows], indent=1)
    target.with_suffix(".json").write_text(raw + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
