"""Build, judge and time variants of a trained network: the recipe's part of `lightning_perf.inference`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from lightning_perf.inference import (
    Effort,
    FineTuner,
    MeasureOptions,
    Tradeoff,
    default_variants,
    measure_variants,
    parse_variants,
    save_document,
    usable_device,
)
from recipes.signlang.inference.distillation import StudyTraining, describe_outcomes, student_maker
from recipes.signlang.inference.held_out import gather_data
from recipes.signlang.training.checkpoint import TrainedModel

__all__ = ["SOURCE", "InferSettings", "infer", "student_variants"]

SOURCE = "signlang-"
"""What the names of the recipe's models begin with in artefacts: they take grey values of 0 to 255."""


@dataclass(frozen=True, kw_only=True)
class InferSettings:
    """One study of a network.

    Attributes:
        data: Where the data are; None for where they were when the network was trained.
        cache_dir: Where the embedded set is kept.
        unseen: The user's word that none of the data was trained on.
        limit: Held-out pictures to take at most.
        calibration: Training pictures to calibrate int8 with at most.
        fine_tune_epochs: Passes over the training pictures after a change such as pruning.
        student: Model to train from the network, beside the same trained alone; None for none.
        student_epochs: Passes over the training pictures for a student.
        student_lr: Highest learning rate for a student.
        seeds: How many students of each kind.
        variants: Names of variants; None for those that need no training, and the student's.
        batch_sizes: Pictures a call.
        threads: CPU threads.
        device: Where variants run.
        seconds: Time for each variant, batch size and number of threads.
        max_latency_ms: Recommend one whose p90 stays below.
        max_accuracy_drop: Recommend one whose accuracy is lower by no more, in percentage points.
        out: Folder that keeps the artefacts and the document.
    """

    data: Path | None = None
    cache_dir: Path | None = None
    unseen: bool = False
    limit: int = 2000
    calibration: int = 256
    fine_tune_epochs: int = 3
    student: str | None = None
    student_epochs: int = 8
    student_lr: float = 0.03
    seeds: int = 1
    variants: tuple[str, ...] | None = None
    batch_sizes: tuple[int, ...] = (1, 32)
    threads: tuple[int, ...] = (1,)
    device: str = "cpu"
    seconds: float = 3.0
    max_latency_ms: float | None = None
    max_accuracy_drop: float | None = None
    out: Path | None = None


def student_variants(student: str) -> tuple[str, ...]:
    """A student distilled and alone, and the distilled one at its fastest.

    Args:
        student: Its name.
    """
    return (
        f"distil-{student}",
        f"alone-{student}",
        f"distil-{student}+onnxruntime",
        f"distil-{student}+onnxruntime-int8",
    )


def infer(trained: TrainedModel, settings: InferSettings, on_progress: Callable[[str], None]) -> Tradeoff:
    """Study a trained network.

    Args:
        trained: The checkpoint.
        settings: The study.
        on_progress: Called with each line of progress.

    Returns:
        The document; with `InferSettings.out` it is there, too.

    Raises:
        RecipeError: The data cannot be used.
        InferenceError: A setting cannot be used.
    """
    student = settings.student
    make = None if student is None else student_maker(student, len(trained.classes), trained.image_size)
    students = {} if student is None or make is None else {student: make}
    variants = settings.variants
    if variants is None:
        variants = (
            *default_variants(usable_device(settings.device).type),
            *(() if student is None else student_variants(student)),
        )
    parse_variants(variants, students)  # a wrong name is said before the data are read
    data = gather_data(
        trained,
        on_progress,
        data=settings.data,
        cache_dir=settings.cache_dir,
        unseen=settings.unseen,
        limit=settings.limit,
        calibration=settings.calibration,
    )
    training = StudyTraining(
        tuner=FineTuner(data.training, epochs=settings.fine_tune_epochs, device=settings.device),
        make_student=make,
        validation=data.validation,
        epochs=settings.student_epochs,
        lr=settings.student_lr,
        seeds=settings.seeds,
        on_progress=on_progress,
        temperature_data=None if student is None else data.temperature_data,
    )
    tradeoff = measure_variants(
        trained.classifier,
        validation=data.validation,
        calibration=data.calibration,
        fine_tune=training,
        students=students,
        options=MeasureOptions(
            variants=variants,
            batch_sizes=settings.batch_sizes,
            threads=settings.threads,
            device=settings.device,
            effort=Effort(seconds=settings.seconds),
            max_latency_ms=settings.max_latency_ms,
            max_accuracy_drop_points=settings.max_accuracy_drop,
            name=f"{SOURCE}{trained.model}",
            labels=trained.classes,
            notes=data.notes,
            out=settings.out,
        ),
        on_progress=on_progress,
    )
    if student is None or not training.outcomes:
        return tradeoff
    outcomes = describe_outcomes(student, settings.student_epochs, training.outcomes)
    told = replace(tradeoff, notes=(*tradeoff.notes, *outcomes))
    return told if settings.out is None else save_document(told, settings.out)
