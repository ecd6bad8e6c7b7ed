"""Build and measure variants of a trained network with `lightning_perf.inference`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

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

SOURCE = "signlang-"
"""Prefix of the names of the recipe's models in artefacts. Such models take grey values of 0 to 255."""


@dataclass(frozen=True, kw_only=True)
class InferSettings:
    """Settings of a study of a network.

    Attributes:
        data: Path of the data; None for their path during the training.
        cache_dir: Folder of the cached synthetic set.
        unseen: Trust the user that none of the data was trained on.
        limit: Most held-out pictures.
        calibration: Most training pictures for int8 calibration.
        fine_tune_epochs: Passes over the training pictures after a change such as pruning.
        student: Model to train as a student, with and without the network as its teacher; None for no student.
        student_epochs: Passes over the training pictures for a student.
        student_lr: Highest learning rate for a student; distilled students get a lower one.
        seeds: Number of students of each kind.
        variants: Names of variants; None for the variants without training, and the student's.
        batch_sizes: Pictures per call.
        threads: CPU threads.
        device: The device to run variants on.
        seconds: Time for each variant, batch size and number of threads.
        max_latency_ms: Recommend a variant with a p90 latency of at most this many milliseconds.
        max_accuracy_drop: Recommend a variant that loses at most this many percentage points of accuracy.
        out: Folder for the artefacts and the document.
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
    """Return the variants of a student: distilled and trained alone, and the distilled one in ONNX Runtime.

    Args:
        student: Name of the student.
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
        The document, which is also saved in `InferSettings.out`.

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
    parse_variants(variants, students)  # report a wrong name before reading the data
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
    told = structs.replace(tradeoff, notes=(*tradeoff.notes, *outcomes))
    return told if settings.out is None else save_document(told, settings.out)
