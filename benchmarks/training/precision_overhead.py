"""Measure the cost of monitoring an fp16 training, and the gain from autocast's weight cache.

Monitors: CPU time inside the hooks of `PrecisionCallback`, over the CPU time of the training. The steps compute in
FP32 with a scaler around them, since fp16 is slow on a CPU and would hide any overhead. Arms: looking at the gradients
at the default cadence, and never. The share is counted inside the hooks, because a shared machine cannot resolve the
difference of two trainings. The table has that difference, too.

Weight cache: casts per step and CPU time of a training that uses a linear layer 16 times in a bf16 forward pass. It
runs through the callback (cache on) and ``Trainer(precision="bf16-mixed")`` (cache off in Lightning since 2.5.6).

Run as ``python -m benchmarks.training.precision_overhead [--device cuda]``: prints the tables, and writes them and the
raw
times to ``benchmarks/results/``, or to the files that ``--out`` names. On a GPU the steps are queued, so that CPU time
is that of the host's own work.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
import torchvision
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.options import make_parser, markdown_table, write_page
from benchmarks.quiet import QUIET_TRAINER, be_quiet
from benchmarks.versions import known_versions, versions_text
from lightning_perf import PrecisionCallback
from lightning_perf.callbacks.precision.autograd_graph import read_graph
from lightning_perf.machine.environment import cpu_name

RESULTS = Path(__file__).parents[1] / "results" / "precision_overhead"
METHOD = 1
"""Version of the method: figures of different versions are not comparable."""

ARMS = ("plain", "monitors, gradients never", "monitors, gradients every 100 steps")
HOOKS = (
    "on_train_batch_start",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
)


@dataclass(frozen=True)
class Fit:
    """One training.

    Attributes:
        model: What was trained.
        arm: How.
        round: Number of the round.
        steps: Steps trained.
        training_s: CPU time from the start of training to its end.
        monitors_s: The part of it inside the monitors' hooks.
        casts: Casts of parameters in a forward pass.
    """

    model: str
    arm: str
    round: int
    steps: int
    training_s: float
    monitors_s: float
    casts: int = 0


class ScaledFp32(MixedPrecision):
    """A scaler around FP32 steps."""

    def autocast_context_manager(self) -> torch.autocast:
        """No autocast."""
        return torch.autocast(self.device, enabled=False)


class TimedCallback(PrecisionCallback):
    """Counts the CPU time of its own hooks."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.monitors_s = 0.0
        for name in HOOKS:
            setattr(self, name, self._timed(getattr(self, name)))

    def _timed(self, hook: Callable[..., None]) -> Callable[..., None]:
        def timed(*arguments: Any) -> None:
            began = time.thread_time_ns()
            hook(*arguments)
            self.monitors_s += (time.thread_time_ns() - began) / 1e9

        return timed


class Clock(pl.Callback):
    """Notes the process's CPU time, and the casts of one step."""

    def __init__(self) -> None:
        self.start = self.end = 0.0
        self.casts = 0

    def on_train_start(self, *_: Any) -> None:
        """Training begins."""
        self.start = time.process_time()

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:  # noqa: ARG002
        """Count once."""
        if trainer.global_step == 0:
            self.casts = sum(read_graph(loss).casts.values())

    def on_train_end(self, *_: Any) -> None:
        """Training is over."""
        self.end = time.process_time()


class Net(pl.LightningModule):
    """A network with the mean of its squared outputs for a loss."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """A loss to have gradients of."""
        return self.net(batch[0]).square().mean()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), 1e-3)


class Repeated(nn.Module):
    """One layer, used 16 times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(512, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All 16."""
        for _ in range(16):
            x = self.layer(x)
        return x


def _layers() -> nn.Module:
    return nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(512, 512), nn.ReLU())))


def _resnet() -> nn.Module:
    return torchvision.models.resnet18(num_classes=25)  # type: ignore[no-any-return]


MONITORED = {"4 linear layers": (_layers, (128, 512)), "ResNet-18": (_resnet, (16, 3, 64, 64))}


def fit(
    model: str, arm: str, number: int, steps: int, net: nn.Module, shape: tuple[int, ...], device: str, **options: Any
) -> Fit:
    """Train once."""
    torch.manual_seed(0)
    batch = torch.randn(shape)
    data = DataLoader(TensorDataset(batch.repeat(steps, *(1 for _ in shape[1:]))), shape[0])
    clock = Clock()
    callback = options.pop("callback", None)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            default_root_dir=folder,
            max_epochs=1,
            accelerator=device,
            devices=1,
            callbacks=[clock, *([callback] if callback is not None else [])],
            **QUIET_TRAINER,
            **options,
        )
        trainer.fit(Net(net), data)
    monitors_s = callback.monitors_s if isinstance(callback, TimedCallback) else 0.0
    return Fit(model, arm, number, steps, clock.end - clock.start, monitors_s, clock.casts)


def monitored(number: int, order: random.Random, steps: int, device: str) -> list[Fit]:
    """One round of the monitors' arms."""
    fits = []
    for model, (make, shape) in MONITORED.items():
        for arm in order.sample(ARMS, len(ARMS)):
            cadence = 100 if arm == ARMS[2] else 0
            callback = None if arm == "plain" else TimedCallback(underflow_every_n_steps=cadence)
            plugin = ScaledFp32("16-mixed", device, torch.amp.GradScaler(device))
            fits.append(fit(model, arm, number, steps, make(), shape, device, callback=callback, plugins=[plugin]))
    return fits


def cached(number: int, order: random.Random, steps: int, device: str) -> list[Fit]:
    """One round of the weight cache's arms."""
    fits = []
    for arm in order.sample(("cache on", "cache off"), 2):
        on = arm == "cache on"
        options = {"callback": PrecisionCallback("bf16-mixed")} if on else {"precision": "bf16-mixed"}
        fits.append(fit("linear used 16 times", arm, number, steps, Repeated(), (32, 512), device, **options))
    return fits


def monitors_table(fits: list[Fit]) -> str:
    """Return the cost of the monitors as a Markdown table."""
    rows = []
    for model in MONITORED:
        runs = {arm: [f for f in fits if (f.model, f.arm) == (model, arm)] for arm in ARMS}
        plain = min(f.training_s for f in runs["plain"])
        for arm, own in runs.items():
            shares = [100 * f.monitors_s / f.training_s for f in own]
            least = min(own, key=lambda f: f.training_s)
            spread = f"{np.median(shares):.2f} % ({min(shares):.2f} – {max(shares):.2f})"
            per_step = f"{least.training_s / least.steps * 1e3:.3f}"
            rows.append((model, arm, per_step, spread, f"{least.training_s / plain:.3f}"))
    shown = ("CPU ms per step, least", "in the monitors, share (least – most)", "ratio to plain, of least")
    return markdown_table(("model", "arm", *shown), rows)


def cache_table(fits: list[Fit]) -> str:
    """Return the gain from the weight cache as a Markdown table."""
    rows = []
    runs = {
        arm: min((f for f in fits if f.arm == arm), key=lambda f: f.training_s) for arm in ("cache off", "cache on")
    }
    for arm, least in runs.items():
        ratio = least.training_s / runs["cache off"].training_s
        rows.append((arm, least.casts, f"{least.training_s / least.steps * 1e3:.3f}", f"{ratio:.3f}"))
    return markdown_table(("arm", "casts per step", "CPU ms per step, least", "ratio"), rows)


def main() -> None:
    """Measure, print and write."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="trainings of each arm (default: 5)")
    parser.add_argument("--steps", type=int, default=200, help="steps of each (default: 200)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to train (default: cpu)")
    parser.add_argument(
        "--out", type=Path, help="results, without suffix (default: benchmarks/results/precision_overhead, or …_cuda)"
    )
    arguments = parser.parse_args()
    device = arguments.device
    results = arguments.out or (RESULTS if device == "cpu" else RESULTS.with_name(f"{RESULTS.name}_{device}"))
    machine = cpu_name() if device == "cpu" else f"{torch.cuda.get_device_name()}, {cpu_name()}"
    torch.set_num_threads(1)
    be_quiet()
    order = random.Random(0)
    monitors: list[Fit] = []
    cache: list[Fit] = []
    monitored(-1, order, 5, device)  # warms up
    for number in range(arguments.rounds):
        monitors += monitored(number, order, arguments.steps, device)
        cache += cached(number, order, arguments.steps, device)
    text = (
        f"# What monitoring precision costs\n\nWritten by `python -m benchmarks.training.precision_overhead`, "
        f"method {METHOD}. "
        f"{arguments.rounds} rounds of {arguments.steps} steps, one thread, {machine}. "
        + versions_text()
        + f".\n\n## Monitors of an fp16 training\n\n{monitors_table(monitors)}\n\n"
        f"## Autocast's weight cache: a linear layer used 16 times\n\n{cache_table(cache)}\n"
    )
    write_page(results.with_suffix(".md"), text)
    raw = {"method": METHOD, "cpu": machine, **known_versions(), "fits": [asdict(f) for f in monitors + cache]}
    results.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
