"""Train a language model with `lightning_perf.PerfCallback` in the Trainer."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from rich.console import Console

from lightning_perf import PerfCallback
from lightning_perf.errors import LocatedError
from recipes.tinylm.data import TextData
from recipes.tinylm.model import GPT
from recipes.tinylm.module import LanguageModule
from recipes.tinylm.settings import TrainSettings
from recipes.tinylm.text import VOCABULARY, unigram_entropy

_console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class TrainResult:
    """The result of a training.

    Attributes:
        loss: Loss on the held-out documents in nats per token.
        unigram_entropy: Entropy of the training text by single tokens, which a model that learns anything beats.
        log_dir: Folder of the run.
    """

    loss: float
    unigram_entropy: float
    log_dir: Path


def train(settings: TrainSettings) -> TrainResult:
    """Train, validate at the end of each epoch, and print the result.

    Args:
        settings: Settings of the training.

    Returns:
        The result.

    Raises:
        LocatedError: The accelerator or a setting cannot be used.
    """
    settings = _runnable(settings)
    # Lightning 2.6 uses torch's pytree in a deprecated way; users cannot change that.
    warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)", category=FutureWarning)
    # Lightning warns about few workers by counting cores. Here a batch takes microseconds.
    warnings.filterwarnings("ignore", message=".*does not have many workers", category=UserWarning)
    seed_everything(settings.seed, verbose=False)
    module, data = build_training(settings)
    trainer = Trainer(
        max_epochs=settings.epochs,
        precision=settings.precision,  # type: ignore[arg-type]  # one of argparse's choices
        accelerator=settings.accelerator,
        devices=1,
        gradient_clip_val=1.0,
        logger=CSVLogger(settings.log_dir, name=""),
        callbacks=[PerfCallback(report="full")],
        enable_checkpointing=False,
        enable_model_summary=False,
        log_every_n_steps=10,
    )
    parameters = sum(parameter.numel() for parameter in module.parameters())
    tokens = sum(map(len, data.training))
    _console.print(
        f"Model   GPT with {settings.layers} layers of width {settings.width}: {parameters / 1e6:.2f} M parameters"
    )
    _console.print(f"Text    {len(data.training):,} documents, {tokens:,} tokens")
    trainer.fit(module, datamodule=data)
    result = TrainResult(
        float(trainer.callback_metrics["val/loss"]), unigram_entropy(data.training), Path(str(trainer.log_dir))
    )
    _console.print(
        f"Loss    {result.loss:.3f} nats per token on held-out documents ({result.loss / math.log(2):.2f} bits per "
        f"byte); single bytes have an entropy of {result.unigram_entropy:.3f} nats"
    )
    _console.print(f"Logs    {result.log_dir}")
    return result


def build_training(settings: TrainSettings) -> tuple[LanguageModule, TextData]:
    """Build the module and the data module of a training.

    Raises:
        LocatedError: A setting cannot be used.
    """
    if settings.width % settings.heads:
        raise LocatedError(
            f"--width {settings.width}",
            f"is not a multiple of --heads {settings.heads}",
            f"Give a multiple, such as {settings.heads * max(settings.width // settings.heads, 1)}",
        )
    data = TextData(settings.documents, settings.context, settings.batch_size, settings.packing, settings.seed)
    network = GPT(
        VOCABULARY,
        settings.context,
        layers=settings.layers,
        heads=settings.heads,
        width=settings.width,
        dropout=settings.dropout,
        checkpointing=settings.checkpointing,
    )
    return LanguageModule(network, settings.lr), data


def _runnable(settings: TrainSettings) -> TrainSettings:
    """Check the accelerator, and replace a precision that this machine cannot run."""
    has_gpu, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if (settings.accelerator == "gpu" and not (has_gpu or has_mps)) or (settings.accelerator == "mps" and not has_mps):
        problem = "PyTorch sees no such device"
        raise LocatedError(f"--accelerator {settings.accelerator}", problem, "Use --accelerator cpu, or auto")
    on_cpu = settings.accelerator == "cpu" or (settings.accelerator == "auto" and not (has_gpu or has_mps))
    if on_cpu and settings.precision == "16-mixed":
        _console.print("16-mixed needs a GPU: on this CPU the training runs bf16-mixed instead.")
        return replace(settings, precision="bf16-mixed")
    return settings
