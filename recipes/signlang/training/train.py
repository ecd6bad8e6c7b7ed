"""Train a sign classifier with `lightning_perf.PerfCallback` in the Trainer."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console

from lightning_perf import PerfCallback
from lightning_perf.inference.measurement.measure import wilson_interval
from recipes.signlang.data.data_module import SignData, default_workers
from recipes.signlang.data.image_set import ImageSet
from recipes.signlang.data.loading import DataRecord, load_data
from recipes.signlang.data.split import Split
from recipes.signlang.errors import RecipeError
from recipes.signlang.settings import SplitKind, TrainSettings
from recipes.signlang.training.checkpoint import check_resumable
from recipes.signlang.training.module import SignModule

_console = Console(soft_wrap=True, highlight=False, markup=False)


@dataclass(frozen=True)
class TrainResult:
    """The result of a finished training.

    Attributes:
        accuracy: Accuracy on the held-out pictures, with the weights of the last epoch, as text with its interval.
        best: Highest accuracy of all epochs. It is too high, because the same pictures choose the epoch. None without
            checkpoints.
        best_checkpoint: Checkpoint of that epoch; None without checkpoints.
        log_dir: Folder of the run.
    """

    accuracy: str
    best: float | None
    best_checkpoint: Path | None
    log_dir: Path


def train(settings: TrainSettings) -> TrainResult | None:
    """Train, validate after each epoch, and print the result and its location.

    Args:
        settings: Settings of the training.

    Returns:
        The result; None if Ctrl-C ended the training, after the weights were saved.

    Raises:
        RecipeError: The data, the accelerator or a setting cannot be used.
    """
    settings = _runnable(settings)
    _check_writable(settings.log_dir)
    seed_everything(settings.seed, workers=True, verbose=False)
    images, split = load_data(settings, _say)
    if settings.resume is not None:
        check_resumable(settings.resume, settings, images, split)
    module, data = build_training(settings, images, split, DataRecord.of(settings, images, split))
    best = ModelCheckpoint(
        monitor="val/accuracy",
        mode="max",
        save_last=True,
        filename="best-epoch{epoch}-accuracy{val/accuracy:.3f}",
        auto_insert_metric_name=False,
    )
    interrupted = ModelCheckpoint(filename="interrupted-{epoch}-{step}", save_top_k=0, save_on_exception=True)
    batches = max(1, len(split.training) // (settings.batch_size * settings.devices))
    trainer = Trainer(
        max_epochs=settings.epochs,
        precision=settings.precision,  # type: ignore[arg-type]  # one of argparse's choices
        accelerator=settings.accelerator,
        devices=settings.devices,
        logger=_logger(settings),
        callbacks=[
            *([best, interrupted] if settings.checkpoints else []),
            PerfCallback(tf32=settings.tf32, report="full"),
        ],
        enable_checkpointing=settings.checkpoints,
        log_every_n_steps=min(10, batches),
        # The summary's size in MB is wrong under mixed precision, and it warns about that. One line is enough.
        enable_model_summary=False,
    )
    _say(f"Model   {settings.model}: {sum(p.numel() for p in module.parameters()) / 1e6:.1f} M parameters")
    # Lightning 2.6 uses torch's pytree in a deprecated way; users cannot change that.
    warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)", category=FutureWarning)
    # Lightning warns about few workers by counting cores; our report shows how long a step waits for data.
    warnings.filterwarnings("ignore", message=".*does not have many workers", category=UserWarning)
    if settings.resume is not None:  # both are expected
        for usual in ("Checkpoint directory .* exists and is not empty", "The dirpath has changed"):
            warnings.filterwarnings("ignore", message=usual, category=UserWarning)
    try:
        trainer.fit(module, datamodule=data, ckpt_path=settings.resume, weights_only=True)
    except SystemExit:
        # After Ctrl-C, Lightning lets the callbacks save their state and then exits the process.
        if not trainer.interrupted:
            raise
        saved = sorted((_log_dir(trainer) / "checkpoints").glob("interrupted-*.ckpt"))
        _say(f"Interrupted. To resume, add to the same command: --resume {saved[-1]}" if saved else "Interrupted.")
        return None
    if "val/accuracy" not in trainer.callback_metrics:
        raise RecipeError(settings.resume, f"{settings.epochs} epochs have been trained already", "Give more --epochs")
    share = float(trainer.callback_metrics["val/accuracy"])
    # Copies of one capture are correct or wrong together, so the interval is over captures if they are held out.
    low, high = wilson_interval(share, split.held_out_units)
    result = TrainResult(
        accuracy=f"{100 * share:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f} %)",
        best=float(best.best_model_score) if best.best_model_score is not None else None,
        best_checkpoint=Path(best.best_model_path) if best.best_model_path else None,
        log_dir=_log_dir(trainer),
    )
    _say_result(settings, split, result)
    return result


def build_training(
    settings: TrainSettings, images: ImageSet, split: Split, record: DataRecord | None = None
) -> tuple[SignModule, SignData]:
    """Build the module and the data module of a training.

    Args:
        settings: Settings of the training.
        images: Pictures of the training.
        split: Their training and held-out sides.
        record: Record for the checkpoints, so that `infer` finds the pictures again.

    Raises:
        RecipeError: The settings require files, but the pictures are in tables.
    """
    workers = default_workers(settings.input) if settings.workers is None else settings.workers
    data = SignData(
        images,
        split,
        settings.batch_size,
        workers,
        input_kind=settings.input,
        moved=settings.augment,
        record=record,
    )
    return SignModule(settings.model, images.classes, settings.image_size, settings.lr), data


def _runnable(settings: TrainSettings) -> TrainSettings:
    """Check the accelerator, and replace a precision that this machine cannot run."""
    has_gpu = torch.cuda.is_available()
    has_mps = torch.backends.mps.is_available()
    if (settings.accelerator == "gpu" and not (has_gpu or has_mps)) or (settings.accelerator == "mps" and not has_mps):
        problem = "PyTorch sees no such device"
        raise RecipeError(f"--accelerator {settings.accelerator}", problem, "Use --accelerator cpu, or auto")
    if has_gpu and settings.accelerator in ("auto", "gpu") and settings.devices > torch.cuda.device_count():
        problem = f"PyTorch sees {torch.cuda.device_count()} GPU(s)"
        raise RecipeError(f"--devices {settings.devices}", problem, "Use as many at most")
    on_cpu = settings.accelerator == "cpu" or (settings.accelerator == "auto" and not (has_gpu or has_mps))
    if on_cpu and settings.precision == "16-mixed":
        _say("16-mixed needs a GPU: on this CPU the training runs bf16-mixed instead (bfloat16, no loss scaling).")
        return replace(settings, precision="bf16-mixed")
    return settings


def _check_writable(log_dir: Path) -> None:
    """Check the folder before reading the data; the Trainer would do it afterwards."""
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=log_dir).close()
    except OSError as error:
        raise RecipeError(f"--log-dir {log_dir}", f"cannot be written ({error.strerror})", "Name another") from error


def _logger(settings: TrainSettings) -> Logger:
    """Return TensorBoard's logger, or one that writes CSV if TensorBoard is not installed."""
    version = _version(settings)
    if find_spec("tensorboard") is None:
        return CSVLogger(settings.log_dir, name="", version=version)
    return TensorBoardLogger(settings.log_dir, name="", version=version, default_hp_metric=False)


def _version(settings: TrainSettings) -> str | None:
    """Return the folder of the resumed run, so that its best epoch stays known; None for a new run."""
    if settings.resume is None:
        return None
    run = settings.resume.resolve().parent.parent
    return run.name if run.parent == settings.log_dir.resolve() else None


def _say_result(settings: TrainSettings, split: Split, result: TrainResult) -> None:
    kind = "synthetic " if settings.data is None else ""
    units = "pictures" if settings.split is SplitKind.RANDOM else "held-out captures"
    _say(f"Accuracy on {len(split.held_out)} held-out {kind}pictures: {result.accuracy}")
    _say(f"            last epoch; Wilson interval over {split.held_out_units} {units}; split {split.rule}")
    if result.best is not None:
        _say(f"Best epoch  {100 * result.best:.1f} % (chosen on the same pictures): {result.best_checkpoint}")
    _say(f"Logs        {result.log_dir}; see them with: tensorboard --logdir {settings.log_dir}")


def _log_dir(trainer: Trainer) -> Path:
    return Path(trainer.log_dir or trainer.default_root_dir)


@rank_zero_only
def _say(line: str) -> None:
    _console.print(line)
