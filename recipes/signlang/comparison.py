"""Run the article's experiment: compare the same training in several precisions, repeated in blocks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_perf.compare import (
    CompareError,
    Device,
    LocalEngine,
    Settings,
    Study,
    StudyArm,
    UnfairError,
    compare_runs,
    exit_code,
    import_extra,
    minimal_detectable_effect,
    parse_devices,
    run_study,
    settle_options,
)
from recipes.signlang.data.loading import read_data
from recipes.signlang.errors import RecipeError
from recipes.signlang.machine import REPOSITORY, TrainDevice
from recipes.signlang.settings import TrainSettings

TF32 = "tf32"

EXACT_BLOCKS = 6
"""Fewest runs per arm for an exact paired test to reach p < 0.05: 2 / 2⁶ = 0.031."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The precisions to compare, and the number of runs.

    Attributes:
        precisions: Names from `recipes.signlang.settings.PRECISIONS`, the baseline first.
        runs: Runs per precision, without the warm-up.
        training: Settings that all trainings share. Its seed applies to block 0, the warm-up; its data seed to all.
        margin: Largest loss of accuracy that does not matter, as a share.
        goal: Accuracy for the time to accuracy, or None.
        folder: Folder for all files of the study.
    """

    precisions: tuple[str, ...]
    runs: int
    training: TrainSettings
    margin: float
    goal: float | None
    folder: Path


def runnable_precisions(
    wanted: Sequence[str] | None, device: TrainDevice, on_progress: Callable[[str], None]
) -> tuple[str, ...]:
    """Return the precisions to compare on a device.

    Args:
        wanted: Requested precisions, the baseline first. None chooses FP32 and mixed precision, and also TF32 on a GPU
            that has it, because PyTorch runs FP32 convolutions in TF32 by default.
        device: The device of the trainings.
        on_progress: Called with each line of progress.

    Raises:
        RecipeError: A precision cannot run on the device or is repeated, or there is only one.
    """
    if wanted is None:
        if device.kind == "cpu":
            return ("32-true", "bf16-mixed")
        return ("32-true", TF32, "16-mixed") if device.has_tf32 else ("32-true", "16-mixed")
    chosen = list(wanted)
    if TF32 in chosen and not device.has_tf32:
        where = device.name or f"this {device.kind}"
        raise RecipeError(f"--precisions {TF32}", f"{where} has no TF32", "It takes an NVIDIA GPU of Ampere or later")
    if device.kind == "cpu" and "16-mixed" in chosen:
        if "bf16-mixed" in chosen:
            raise RecipeError("--precisions 16-mixed", "needs a GPU", "Leave it out; bf16-mixed is there already")
        on_progress("16-mixed needs a GPU: on this CPU bf16-mixed is compared instead (bfloat16, no loss scaling).")
        chosen[chosen.index("16-mixed")] = "bf16-mixed"
    if len(set(chosen)) < len(chosen):
        raise RecipeError("--precisions", "one is named twice", "Name each once")
    if len(chosen) < 2:
        raise RecipeError("--precisions", "a comparison needs two", "Name the baseline, then the others")
    if device.has_tf32 and "32-true" in chosen and TF32 not in chosen:
        on_progress(
            "32-true here is true FP32. A plain 32-true training on this GPU runs its convolutions in TF32: add tf32 "
            "to --precisions to compare with that as well."
        )
    return tuple(chosen)


def runs_warning(runs: int) -> str | None:
    """Return a warning about too few runs, or None if there are enough.

    Example:
        >>> runs_warning(6) is None, runs_warning(1)
        (True, 'One run of each tells no spread: there will be a change without an interval, and no verdict.')
    """
    if runs >= EXACT_BLOCKS:
        return None
    effect = minimal_detectable_effect(runs)
    if effect is None:
        return "One run of each tells no spread: there will be a change without an interval, and no verdict."
    return (
        f"{runs} runs of each: no exact test can reach p < 0.05 (the least is {2 / 2**runs:.3g}), and a difference has "
        f"to be {effect:.1f} standard deviations to be found with 80 % power; with {EXACT_BLOCKS} runs "
        f"{minimal_detectable_effect(EXACT_BLOCKS) or 0.0:.1f}."
    )


def define_study(experiment: Experiment, device: TrainDevice) -> Study:
    """Return the study of an experiment: one arm per precision, one fresh process per run, the same data for all.

    Args:
        experiment: The experiment.
        device: The device of the trainings.
    """
    arms = tuple(StudyArm(name, _command(name, experiment.training, device)) for name in experiment.precisions)
    flags = ("tf32_matmul", "tf32_cudnn") if TF32 in experiment.precisions else ()
    return Study(
        arms=arms,
        blocks=experiment.runs,
        treatment=("precision", *flags),
        seed=experiment.training.seed,
        workdir=str(REPOSITORY),
    )


def run_experiment(experiment: Experiment, device: TrainDevice, on_progress: Callable[[str], None]) -> int:
    """Run or continue the study, then print and save the comparison.

    Args:
        experiment: The experiment.
        device: The device of the trainings.
        on_progress: Called with each line of progress.

    Returns:
        The exit code of ``lightning-perf compare``.

    Raises:
        RecipeError: The data cannot be used.
        CompareError: The folder holds another study, a setting is wrong, or runs failed.
        MissingExtraError: scipy or matplotlib is not installed.
        KeyboardInterrupt: The user stopped the study; the same command resumes it.
    """
    for package in ("scipy", "matplotlib"):  # before the runs, not after
        import_extra(package, "compare")
    study = define_study(experiment, device)
    _check_data(experiment.training, on_progress)
    folder = experiment.folder
    declared = Settings(accuracy="val/accuracy", margin=experiment.margin, goal=experiment.goal)
    settings = settle_options(folder, None, declared).settings
    count = len(experiment.precisions) * (experiment.runs + 1)
    on_progress(
        f"Study   {', '.join(experiment.precisions)}: {experiment.runs} runs each and a warm-up, {count} in all"
    )
    on_progress(f"        in {folder}; if interrupted, give the same command again to resume")
    warning = runs_warning(experiment.runs)
    if warning is not None:
        on_progress(f"Note    {warning}")
    run_study(study, folder, LocalEngine(engine_devices(device)), on_progress)
    return _show(folder, settings, on_progress)


def _show(folder: Path, settings: Settings, on_progress: Callable[[str], None]) -> int:
    try:
        comparison = compare_runs(folder, settings)
    except UnfairError as error:
        _save(folder, error.refusal.to_json(), error.refusal.to_markdown())
        error.refusal.print()
        command = f"lightning-perf compare {folder} --allow … --plot {folder}/plots"
        on_progress(f"To see the runs anyway: {command}")
        return exit_code(error.refusal)
    _save(folder, comparison.to_json(), comparison.to_markdown())
    on_progress(f"Plots    {comparison.save_plots(folder / 'plots')}")
    comparison.print()
    on_progress(f"Saved    {folder}/comparison.json, comparison.md, plots")
    return exit_code(comparison)


def _save(folder: Path, json: str, markdown: str) -> None:
    try:
        (folder / "comparison.json").write_text(json, encoding="utf-8")
        (folder / "comparison.md").write_text(markdown, encoding="utf-8")
    except OSError as error:
        raise CompareError(f"{folder}: cannot be written ({error.strerror}). Give another folder.") from error


def _command(precision: str, training: TrainSettings, device: TrainDevice) -> tuple[str, ...]:
    """Return the command of one training. On a device with TF32, it is on in the arm ``tf32`` and off in the others."""
    options: dict[str, object] = {
        "precision": "32-true" if precision == TF32 else precision,
        "seed": "{seed}",
        "data-seed": training.seed_of_data,
        "model": training.model,
        "epochs": training.epochs,
        "image-size": training.image_size,
        "batch-size": training.batch_size,
        "lr": training.lr,
        "split": training.split.value,
        "validation-fraction": training.validation_fraction,
        "input": training.input.value,
        "accelerator": device.kind,
        "log-dir": "{dir}",
    }
    if device.has_tf32:
        options["tf32"] = "on" if precision == TF32 else "off"
    given = {
        "data": training.data.absolute() if training.data is not None else None,
        "cache-dir": training.cache_dir.absolute() if training.cache_dir is not None else None,
        "copies": training.copies,
        "workers": training.workers,
    }
    options |= {name: value for name, value in given.items() if value is not None}
    switches = ["--no-checkpoints"]
    switches += ["--augment"] if training.augment else []
    switches += ["--skip-unreadable"] if training.skip_unreadable else []
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return (sys.executable, "-m", "recipes.signlang", "train", *words, *switches)


def _check_data(training: TrainSettings, on_progress: Callable[[str], None]) -> None:
    """Read and split the data, so that an error in them shows before the first run."""
    images, split, _ = read_data(training)
    on_progress(
        f"Data    {len(images)} pictures of {training.image_size} px, {len(images.classes)} labels, from {images.path}"
    )
    on_progress(f"        {len(split.training)} train, {len(split.held_out)} are held out; split {split.rule}")


def engine_devices(device: TrainDevice) -> tuple[Device, ...]:
    """Return the devices that the runs lease.

    Args:
        device: The device of the trainings.
    """
    if device.kind == "cpu":
        return parse_devices("cpu")
    if device.kind == "mps":
        return (Device("mps"),)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:  # the user's choice; all runs see the same devices
        return (Device("gpu" + "".join(c if c.isalnum() else "-" for c in visible)),)
    found = parse_devices(None)
    # Without NVML and nvidia-smi the engine finds no GPU, but PyTorch does.
    return found if found != (Device("cpu"),) else (Device("gpu0"),)
