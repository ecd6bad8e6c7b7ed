"""Add `PerfCallback` to programs by others, and check that it changes nothing and that its advice is worth following.

Each program is a short training in the way that its package's own introduction shows. It runs in a fresh process
without the callback, with it, and without it again. The table shows whether the trained weights are the same bit for
bit and whether the steps are counted right. It also shows the median step with and without, and the findings.

Packages that are not installed are left out of the table and named below it. Run as ``python -m
benchmarks.compatibility [PROGRAM …]``: prints a table, and writes it to ``benchmarks/results/compatibility.md``.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import itertools
import json
import logging
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.options import make_parser
from benchmarks.versions import device_name, versions_text

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "compatibility.md"
LIMIT_S = 300
SKIPPED_STEPS = 10
"""Steps at the start of a training that are left out of its mean step: they load and compile."""

Run = Callable[[list[Any], str], Any]
"""Trains with the given callbacks in a folder, and returns the trained module."""


@dataclass(frozen=True)
class Program:
    """A training that a package's users write.

    Attributes:
        package: Its name on PyPI.
        train: Runs it.
        repeats_itself: Whether two runs without the callback end in the same weights.
    """

    package: str
    train: Run
    repeats_itself: bool = True


@dataclass(frozen=True)
class Outcome:
    """The result of one process.

    Attributes:
        weights: Hash of the trained weights.
        steps: Batches at which the Trainer counted an optimizer step.
        step_ms: Median time from the end of one batch to the end of the next.
        recorded_steps: Steps in the callback's step log; `None` without the callback.
        findings: Titles of the findings with the middle of their saving as a share of the step.
        warnings: Warnings of the callback.
        error: The end of the traceback, if it failed.
    """

    weights: str = ""
    steps: int = 0
    step_ms: float = 0.0
    recorded_steps: int | None = None
    findings: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str = ""


def _series(length: int = 400) -> Any:
    import numpy as np

    steps = np.arange(length, dtype=np.float32)
    noise = np.random.default_rng(0).normal(0, 0.1, length).astype(np.float32)
    return np.sin(steps / 6) + 0.01 * steps + noise


def _quiet(callbacks: list[Any], folder: str, **more: Any) -> dict[str, Any]:
    return {
        "callbacks": callbacks,
        "default_root_dir": folder,
        "accelerator": "auto",
        "devices": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        **more,
    }


def neuralforecast(callbacks: list[Any], folder: str) -> Any:
    """Train N-HiTS on one series."""
    import pandas as pd
    from neuralforecast import NeuralForecast
    from neuralforecast.models import NHITS

    values = _series()
    dates = pd.date_range("2020-01-01", periods=len(values), freq="D")
    frame = pd.DataFrame({"unique_id": "one", "ds": dates, "y": values})
    options = _quiet(callbacks, folder, logger=False)
    options.pop("enable_checkpointing")
    model = NHITS(h=12, input_size=24, max_steps=120, random_seed=1, **options)
    forecast = NeuralForecast([model], freq="D")
    forecast.fit(frame)
    return forecast.models[0]


def darts(callbacks: list[Any], folder: str) -> Any:
    """Train N-BEATS on one series."""
    from darts import TimeSeries
    from darts.models import NBEATSModel

    options = _quiet(callbacks, folder)
    options.pop("enable_checkpointing")
    model = NBEATSModel(
        24, 12, n_epochs=4, num_blocks=1, num_layers=2, layer_widths=64, random_state=1, pl_trainer_kwargs=options
    )
    model.fit(TimeSeries.from_values(_series()))
    return model.model


def pytorch_forecasting(callbacks: list[Any], folder: str) -> Any:
    """Train a Temporal Fusion Transformer on two series."""
    import lightning.pytorch as pl
    import pandas as pd
    from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet

    values = _series(200)
    frame = pd.concat(
        pd.DataFrame({"group": name, "time": range(len(values)), "value": values * scale})
        for name, scale in (("a", 1.0), ("b", 2.0))
    ).reset_index(drop=True)
    data = TimeSeriesDataSet(
        frame,
        time_idx="time",
        target="value",
        group_ids=["group"],
        max_encoder_length=24,
        max_prediction_length=6,
        time_varying_unknown_reals=["value"],
    )
    pl.seed_everything(1)
    model = TemporalFusionTransformer.from_dataset(data, hidden_size=8, attention_head_size=1, dropout=0.1)
    trainer = pl.Trainer(max_epochs=2, gradient_clip_val=0.1, logger=False, **_quiet(callbacks, folder))
    trainer.fit(model, data.to_dataloader(train=True, batch_size=16, num_workers=0))
    return model


def scvi_tools(callbacks: list[Any], folder: str) -> Any:
    """Train scVI on random counts."""
    import anndata
    import numpy as np
    import scvi

    scvi.settings.seed = 1
    counts = np.random.default_rng(0).poisson(1.0, (1000, 200)).astype(np.float32)
    data = anndata.AnnData(counts)
    scvi.model.SCVI.setup_anndata(data)
    model = scvi.model.SCVI(data, n_latent=5)
    options = _quiet(callbacks, folder, logger=False)
    for name in ("accelerator", "devices", "enable_checkpointing"):
        options.pop(name)
    model.train(max_epochs=12, accelerator="cpu", **options)
    return model.module


def lightly(callbacks: list[Any], folder: str) -> Any:
    """Train SimCLR on random pictures."""
    import lightning.pytorch as pl
    import torch
    import torchvision
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    class SimClr(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            resnet = torchvision.models.resnet18()
            self.backbone = torch.nn.Sequential(*list(resnet.children())[:-1])
            self.head = SimCLRProjectionHead(512, 128, 32)
            self.criterion = NTXentLoss()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:  # noqa: ARG002
            views = (self.head(self.backbone(view).flatten(1)) for view in batch)
            loss: torch.Tensor = self.criterion(*views)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    pl.seed_everything(1)
    pictures = torch.rand(2, 160, 3, 32, 32)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*pictures), batch_size=8)
    module = SimClr()
    pl.Trainer(max_epochs=2, logger=False, **_quiet(callbacks, folder)).fit(module, loader)
    return module


def segmentation_models(callbacks: list[Any], folder: str) -> Any:
    """Train a U-Net on random masks."""
    import lightning.pytorch as pl
    import segmentation_models_pytorch as smp
    import torch

    class Segmentation(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = smp.Unet("resnet18", encoder_weights=None, classes=1)
            self.loss = smp.losses.DiceLoss(smp.losses.BINARY_MODE)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:  # noqa: ARG002
            loss: torch.Tensor = self.loss(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-4)

    pl.seed_everything(1)
    data = torch.utils.data.TensorDataset(torch.rand(120, 3, 64, 64), torch.randint(0, 2, (120, 1, 64, 64)).float())
    module = Segmentation()
    trainer = pl.Trainer(max_epochs=1, logger=False, **_quiet(callbacks, folder))
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
    return module


def chemprop(callbacks: list[Any], folder: str) -> Any:
    """Train a message-passing network on a few molecules."""
    import lightning.pytorch as pl
    import numpy as np
    from chemprop import data, models, nn

    pl.seed_everything(1)
    smiles = ["CCO", "CCN", "c1ccccc1", "CC(=O)O", "CCCC", "C1CCCCC1", "CO", "CN"] * 40
    points = [data.MoleculeDatapoint.from_smi(text, np.array([float(len(text))])) for text in smiles]
    loader = data.build_dataloader(data.MoleculeDataset(points), batch_size=8, num_workers=0, seed=1)
    module = models.MPNN(nn.BondMessagePassing(d_h=64), nn.MeanAggregation(), nn.RegressionFFN(input_dim=64))
    pl.Trainer(max_epochs=2, logger=False, **_quiet(callbacks, folder)).fit(module, loader)
    return module


def gluonts(callbacks: list[Any], folder: str) -> Any:
    """Train DeepAR on one series."""
    import lightning.pytorch as pl
    from gluonts.dataset.common import ListDataset
    from gluonts.torch.model.deepar import DeepAREstimator

    pl.seed_everything(1)
    options = _quiet(callbacks, folder, max_epochs=2, logger=False)
    options.pop("enable_checkpointing")
    for name in ("accelerator", "devices"):
        options.pop(name)
    estimator = DeepAREstimator(
        freq="D", prediction_length=6, context_length=24, num_batches_per_epoch=50, trainer_kwargs=options
    )
    predictor = estimator.train(ListDataset([{"start": "2020-01-01", "target": _series()}], freq="D"))
    return predictor.prediction_net


def lightning_transformer(callbacks: list[Any], folder: str) -> Any:
    """Train Lightning's own demo Transformer on random words."""
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.demos import Transformer

    class Words(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Transformer(vocab_size=500, ninp=64, nhead=2, nhid=128, nlayers=2)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:  # noqa: ARG002
            words, target = batch
            return torch.nn.functional.nll_loss(self.net(words, target), target.view(-1))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    pl.seed_everything(1)
    words = torch.randint(0, 500, (400, 2, 35))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(words[:, 0], words[:, 1]), batch_size=4)
    module = Words()
    pl.Trainer(max_epochs=1, logger=False, **_quiet(callbacks, folder)).fit(module, loader)
    return module


def lightning_gan(callbacks: list[Any], folder: str) -> Any:
    """Train two networks with two optimizers by manual optimization, as in Lightning's examples of a GAN."""
    import lightning.pytorch as pl
    import torch
    from torch import nn

    class Gan(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.generator = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 784))
            self.judge = nn.Sequential(nn.Linear(784, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))

        def training_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
            optimizers: Any = self.optimizers()
            for_generator, for_judge = optimizers
            drawn = self.generator(torch.randn(len(batch[0]), 16, device=self.device))
            loss = nn.functional.softplus(-self.judge(drawn)).mean()
            for_generator.zero_grad()
            self.manual_backward(loss)
            for_generator.step()
            loss = nn.functional.softplus(self.judge(drawn.detach())).mean()
            loss = loss + nn.functional.softplus(-self.judge(batch[0])).mean()
            for_judge.zero_grad()
            self.manual_backward(loss)
            for_judge.step()

        def configure_optimizers(self) -> Any:
            return [torch.optim.Adam(part.parameters(), 2e-4) for part in (self.generator, self.judge)]

    pl.seed_everything(1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(2000, 784)), batch_size=16)
    module = Gan()
    pl.Trainer(max_epochs=1, logger=False, **_quiet(callbacks, folder)).fit(module, loader)
    return module


def timm_classifier(callbacks: list[Any], folder: str) -> Any:
    """Train a small network of timm with accumulation and clipping."""
    import lightning.pytorch as pl
    import timm
    import torch

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = timm.create_model("mobilenetv3_small_050", pretrained=False, num_classes=10)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:  # noqa: ARG002
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)]

    pl.seed_everything(1)
    data = torch.utils.data.TensorDataset(torch.rand(320, 3, 64, 64), torch.randint(0, 10, (320,)))
    module = Classifier()
    options = _quiet(callbacks, folder, accumulate_grad_batches=2, gradient_clip_val=1.0)
    pl.Trainer(max_epochs=1, logger=False, **options).fit(module, torch.utils.data.DataLoader(data, batch_size=4))
    return module


PROGRAMS: Mapping[str, Program] = {
    "neuralforecast": Program("neuralforecast", neuralforecast),
    "darts": Program("u8darts", darts),
    "pytorch-forecasting": Program("pytorch-forecasting", pytorch_forecasting),
    "scvi-tools": Program("scvi-tools", scvi_tools),
    "lightly": Program("lightly", lightly),
    "segmentation-models": Program("segmentation-models-pytorch", segmentation_models),
    "chemprop": Program("chemprop", chemprop),
    "gluonts": Program("gluonts", gluonts),
    "lightning-transformer": Program("lightning", lightning_transformer),
    "lightning-gan": Program("lightning", lightning_gan),
    "timm": Program("timm", timm_classifier),
}


def run_here(name: str, *, with_callback: bool) -> Outcome:
    """Run a program in this process."""
    import lightning.pytorch as pl
    import torch

    from lightning_perf import PerfCallback

    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Clock(pl.Callback):
        # On the class: some packages train with copies of the callbacks.
        ends: ClassVar[list[float]] = []
        step_counts: ClassVar[list[int]] = [0]

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            self.ends.append(time.perf_counter())
            if trainer.global_step != self.step_counts[-1]:  # two optimizers in one batch count twice there
                self.step_counts.append(trainer.global_step)

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        perf = PerfCallback(dirpath=f"{folder}/perf") if with_callback else None
        module = PROGRAMS[name].train([clock, *([perf] if perf else [])], folder)
        findings, recorded = _report(Path(folder) / "perf") if with_callback else ((), None)
    digest = hashlib.sha256()
    for key, tensor in sorted(module.state_dict().items()):
        digest.update(key.encode())
        flat = tensor.detach().cpu().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    gaps = sorted(end - begin for begin, end in itertools.pairwise(clock.ends[SKIPPED_STEPS:]))
    own = tuple(str(one.message).split("\n")[0] for one in caught if "PerfCallback" in str(one.message))
    step_ms = gaps[len(gaps) // 2] * 1e3 if gaps else 0.0
    return Outcome(digest.hexdigest()[:16], len(clock.step_counts) - 1, step_ms, recorded, findings, own)


def _report(folder: Path) -> tuple[tuple[str, ...], int]:
    from lightning_perf import analyze

    report = analyze(folder)
    titles = []
    for found in report.findings:
        low, high, step = found.saving_low_ms, found.saving_high_ms, found.step_ms
        saving = f" ({low / step:.0%}–{high / step:.0%})" if step and low is not None and high is not None else ""
        titles.append(f"`{found.kind}`{saving}")
    times = report.step_times
    return tuple(titles), times.steps + times.warmup_steps + times.profiled_steps if times is not None else 0


def run_apart(name: str, *, with_callback: bool) -> Outcome:
    """Run a program in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.compatibility", name, "--one", "with" if with_callback else "without"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return Outcome(error=f"took more than {LIMIT_S} s")
    for line in reversed(done.stdout.splitlines()):
        if line.startswith('{"outcome"'):
            return Outcome(**json.loads(line)["outcome"])
    return Outcome(error=(done.stderr.strip().splitlines() or ["no output"])[-1])


def row(name: str) -> str:
    """Run a program three times, and return its row of the table."""
    program = PROGRAMS[name]
    version = importlib.metadata.version(program.package)
    before = run_apart(name, with_callback=False)
    with_it = run_apart(name, with_callback=True)
    after = run_apart(name, with_callback=False)
    head = f"| {name} | {program.package} {version} "
    if error := before.error or with_it.error or after.error:
        return f"{head}| failed: {error} | | | |"
    if before.weights != after.weights:
        same = "does not repeat itself"
    else:
        same = "yes" if with_it.weights == before.weights else "**no**"
    steps = "yes" if with_it.recorded_steps == with_it.steps == before.steps else "**no**"
    spread = abs(before.step_ms - after.step_ms) * 2 / max(before.step_ms + after.step_ms, 1e-9)
    plain_ms = (before.step_ms + after.step_ms) / 2
    said = ", ".join(with_it.findings) or "none"
    return (
        f"{head}| {same} | {steps}: {with_it.recorded_steps} of {with_it.steps} "
        f"| {plain_ms:.2f} → {with_it.step_ms:.2f} (between the two without: {spread:.0%}) | {said} |"
    )


def main() -> int:
    """Run programs, print and write the table."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"one of {', '.join(PROGRAMS)} (default: all)")
    parser.add_argument("--one", choices=("with", "without"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.programs) - set(PROGRAMS):
        parser.error(f"unknown program {min(unknown)!r}; choose from {', '.join(PROGRAMS)}")
    if options.one:
        try:
            outcome = run_here(options.programs[0], with_callback=options.one == "with")
        except Exception:
            outcome = Outcome(error=traceback.format_exc().strip().splitlines()[-1])
        print(json.dumps({"outcome": outcome.__dict__}))
        return 0
    rows, missing = [], []
    for name in options.programs or PROGRAMS:
        try:
            rows.append(row(name))
        except importlib.metadata.PackageNotFoundError:
            missing.append(PROGRAMS[name].package)
            continue
        print(rows[-1], flush=True)
    left_out = f"\nNot installed: {', '.join(missing)}.\n" if missing else ""
    text = (
        "# Programs by others\n\nWritten by `python -m benchmarks.compatibility`: each program trains in a fresh "
        f"process without, with, and again without `PerfCallback()`, on one thread; {device_name()}. "
        f"{versions_text()}.\n\n"
        "| program | package | weights the same bit for bit | steps counted right | median step without → with, ms "
        "| findings (estimated saving) |\n|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n" + left_out
    )
    if not options.programs:
        options.results.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
