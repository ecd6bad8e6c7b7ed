"""Plant losses in a training on two devices, and check the time that ``tune --devices`` gives to their cause.

The plants sleep: one rank in every step, or the data loader of each rank where there are two. A third training only
computes, so that its causes have no known size. Each process computes on one thread.

Run as ``python -m benchmarks.comparing.scaling``. It prints a table and writes it to ``benchmarks/results/scaling.md``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.options import make_parser
from benchmarks.quiet import QUIET_TRAINER
from benchmarks.versions import device_name, versions_text
from lightning_perf.statistics.values import Estimate
from lightning_perf.tune.scaling import LABELS, CauseName, ScalingResult

RESULTS = Path(__file__).parents[1] / "results" / "scaling.md"

SLEEP_S = 0.03

PLANTS: dict[str, tuple[str, CauseName | None]] = {
    "late": ("rank 1 sleeps in every step", "imbalance"),
    "input": ("the loaders of two ranks sleep for every batch", "input"),
    "none": ("nothing: a small CNN", None),
}
"""Trainings by their name in this script's option: the planted loss, and the cause that has to get its time."""


class Network(pl.LightningModule):
    """A small CNN. Its last rank can be late."""

    def __init__(self, plant: str) -> None:
        super().__init__()
        self._late = plant == "late"
        layers = (nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self._layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 4))

    def training_step(self, batch: Sequence[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss."""
        if self._late and self.global_rank == 1:
            time.sleep(SLEEP_S)
        images, labels = batch
        return nn.functional.cross_entropy(self._layers(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), 1e-3)


def train(plant: str) -> None:
    """Train as the script that is tuned."""
    torch.set_num_threads(1)
    slow = plant == "input" and "LOCAL_RANK" in os.environ

    def collate(rows: list[Any]) -> Any:
        time.sleep(SLEEP_S * slow)
        return torch.utils.data.default_collate(rows)

    data = TensorDataset(torch.randn(2048, 3, 32, 32), torch.randint(0, 4, (2048,)))
    trainer = pl.Trainer(accelerator="cpu", devices=1, max_epochs=1, **QUIET_TRAINER)
    trainer.fit(Network(plant), DataLoader(data, 16, collate_fn=collate))


def row(plant: str) -> str:
    """Return the row of a plant."""
    words, cause = PLANTS[plant]
    with tempfile.TemporaryDirectory() as folder:
        training = ["-m", "benchmarks.comparing.scaling", f"--plant={plant}"]
        tune = ["tune", "--devices=1,2", "--minutes=6", "--quiet", "-o", folder, *training]
        subprocess.run([sys.executable, "-m", "lightning_perf", *tune], check=True, stdout=subprocess.DEVNULL)
        (alone, both) = ScalingResult.load(Path(folder) / "scaling.json").counts
    lost = {each.name: each.lost_ms for each in both.causes}
    known = "" if cause is None else f"{1e3 * SLEEP_S:.0f}"
    others = ", ".join(f"{LABELS[name]} {span(time_ms)}" for name, time_ms in lost.items() if time_ms and name != cause)
    times = f"{span(alone.step_ms)} | {span(both.step_ms)} | {known} | {span(lost[cause]) if cause else ''}"
    return f"| {words} | {times} | {others} |"


def span(estimate: Estimate | None) -> str:
    """Return a time with its interval."""
    if estimate is None or estimate.value is None:
        return "not recorded"
    return f"{estimate.value:.1f} ({estimate.low:.1f} to {estimate.high:.1f})"


def main() -> None:
    """Measure, print and write; or train as a plant."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("--plant", choices=PLANTS, help="only train, with this plant (for itself)")
    options = parser.parse_args()
    if options.plant:
        train(options.plant)
        return
    rows = []
    for plant in PLANTS:
        rows.append(row(plant))
        print(rows[-1], flush=True)
    options.results.write_text(
        "# Lost time on two devices by cause\n\nWritten by `python -m benchmarks.comparing.scaling` with `tune "
        f"--devices 1,2`: {device_name()}, {os.cpu_count()} cores; load average {os.getloadavg()[0]:.1f} at the end, "
        f"this benchmark's own part in it. {versions_text()}.\n\n"
        "Times per step in ms, means of up to 6 blocks with 95 % intervals.\n\n"
        "| planted | step on 1 | step on 2 | planted time | found | other causes |\n|---|---|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
