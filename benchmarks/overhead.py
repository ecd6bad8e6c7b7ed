"""What `PerfCallback` costs a training: CPU time of its steps with the callback over that without.

Arms, each a fit of its own in this process, alternating in rounds of random order:

- plain: no callback;
- empty: a callback with no hooks, which the Trainer calls all the same;
- timer: the step timer alone (the window never comes);
- window: the default schedule, its window of recorded steps and the writing of the trace included.

Beside the whole fit stand the steps after the window: a profiler that leaves something behind would show there. The
analysis after training is timed apart. Process CPU time is used, so that other work on the machine does not count.

Run as ``python -m benchmarks.overhead``: prints a table, and writes it and the raw times to ``benchmarks/results/``.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf import PerfCallback
from lightning_perf.callbacks.schedule import Schedule
from lightning_perf.environment import cpu_name, version_facts

RESULTS = Path(__file__).parent / "results" / "overhead"
METHOD = 1
"""Version of the method: figures of different versions are not comparable."""

NEVER = 10**9
WINDOW_END = Schedule().first_recorded + Schedule().active
ARMS = ("plain", "empty", "timer", "window")
MODELS = {"step of about 1 ms": (64, 32), "step of about 10 ms": (512, 128)}
"""Width of the layers, and batch size."""


@dataclass(frozen=True)
class Fit:
    """CPU times of one fit in seconds.

    Attributes:
        model: Key of `MODELS`.
        arm: One of `ARMS`.
        round: Number of the round.
        training_s: From the start of training to its end.
        after_window_s: The steps after `WINDOW_END`.
        analysis_s: From the end of training to the end of the fit.
    """

    model: str
    arm: str
    round: int
    training_s: float
    after_window_s: float
    analysis_s: float


class Clock(pl.Callback):
    """Notes the process's CPU time; its hooks come before those of the callbacks behind it in the list."""

    def __init__(self) -> None:
        self.start = self.after_window = self.end = 0.0

    def on_train_start(self, *_: Any) -> None:
        """Training begins."""
        self.start = time.process_time()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """A step is over."""
        if trainer.global_step == WINDOW_END + 1:  # the window is closed when the next step begins
            self.after_window = time.process_time()

    def on_train_epoch_end(self, *_: Any) -> None:
        """Training is over."""
        self.end = time.process_time()


class Layers(pl.LightningModule):
    """Four linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            *(part for _ in range(4) for part in (torch.nn.Linear(width, width), torch.nn.ReLU()))
        )

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """A loss to have gradients of."""
        return self.layers(batch[0]).square().mean()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), 1e-3)


def fit(model: str, arm: str, number: int, steps: int) -> Fit:
    """Train once."""
    width, batch = MODELS[model]
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(batch * steps, width)), batch)
    clock = Clock()
    callbacks: list[pl.Callback] = [clock]
    if arm == "empty":
        callbacks.append(pl.Callback())
    elif arm != "plain":
        callbacks.append(PerfCallback(skip_first=NEVER if arm == "timer" else None, print_report=False))
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            default_root_dir=folder,
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=callbacks,
        )
        trainer.fit(Layers(width), data)
        ended = time.process_time()
    return Fit(model, arm, number, clock.end - clock.start, clock.end - clock.after_window, ended - clock.end)


def table(fits: list[Fit], steps: int) -> str:
    """The result as a Markdown table.

    What else runs on the machine only ever adds to a fit's time (caches, shared cores), so the least of the rounds is
    nearest to the cost itself; the medians of the rounds' ratios tell how far to trust it.
    """
    lines = [
        (
            "| model | arm | CPU ms a step, least | ratio of least | ratio, median (least – most) | after the window, "
            "ratio of least | analysis, CPU s |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for model in MODELS:
        runs = {arm: [f for f in fits if (f.model, f.arm) == (model, arm)] for arm in ARMS}
        plain = runs["plain"]
        for arm, own in runs.items():
            ratios = [f.training_s / p.training_s for f, p in zip(own, plain, strict=True)]
            least = min(f.training_s for f in own)
            after = min(f.after_window_s for f in own) / min(f.after_window_s for f in plain)
            lines.append(
                f"| {model} | {arm} | {least / steps * 1e3:.3f} | {least / min(f.training_s for f in plain):.3f} "
                f"| {np.median(ratios):.3f} ({min(ratios):.3f} – {max(ratios):.3f}) | {after:.3f} "
                f"| {np.median([f.analysis_s for f in own]):.2f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="fits of each arm (default: 9)")
    parser.add_argument("--steps", type=int, default=300, help="steps a fit (default: 300)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    order = random.Random(0)
    fits = [
        fit(model, arm, number, arguments.steps)
        for number in range(-1, arguments.rounds)  # the first round warms up and is left out
        for model in MODELS
        for arm in order.sample(ARMS, len(ARMS))
    ]
    kept = [f for f in fits if f.round >= 0]
    versions = {name: value for name, value in version_facts().items() if value is not None}
    text = (
        f"# Overhead of PerfCallback\n\nWritten by `python -m benchmarks.overhead`, method {METHOD}. "
        f"{arguments.rounds} rounds of {arguments.steps} steps, one thread, {cpu_name()}. "
        + ", ".join(f"{name.removeprefix('version.')} {value}" for name, value in versions.items())
        + f".\n\n{table(kept, arguments.steps)}\n"
    )
    print(text)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.with_suffix(".md").write_text(text, encoding="utf-8")
    raw = {"method": METHOD, "steps": arguments.steps, "cpu": cpu_name(), **versions, "fits": [asdict(f) for f in kept]}
    RESULTS.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
