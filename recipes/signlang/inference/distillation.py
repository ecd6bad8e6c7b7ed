"""Train what variants need trained: changed models briefly, students from fresh weights with several seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from lightning_perf.inference import FineTuner, Validation
from recipes.signlang.training.model import SignClassifier, build_model

__all__ = ["StudentOutcome", "StudyTraining", "accuracy_of", "say_outcomes", "student_maker"]

_BATCH = 64


def student_maker(model: str, classes: int, image_size: int) -> Callable[[], nn.Module]:
    """What makes an untrained student.

    Args:
        model: A key of `recipes.signlang.training.model.MODELS`.
        classes: Number of labels.
        image_size: Width and height of the pictures in pixels.
    """
    return lambda: SignClassifier(build_model(model, classes, image_size), untrained=True)


@dataclass(frozen=True)
class StudentOutcome:
    """What one student came to.

    Attributes:
        distilled: Whether it learned from the teacher, too.
        seed: Of its weights and the order of the pictures.
        accuracy: On the held-out pictures, 0 to 1.
    """

    distilled: bool
    seed: int
    accuracy: float


@dataclass(frozen=True)
class StudyTraining:
    """A `FineTune`: fine-tunes a changed model, and trains an untrained student once for every seed.

    Distilled or alone, students of a seed start from the same weights and see the same pictures in the same order. The
    student of the first seed becomes the variant, whichever is best; what all came to is in `outcomes`.

    Attributes:
        tuner: Trains changed models; students with its data and settings, but for epochs, rate and seed.
        make_student: Makes an untrained student; None when there are none.
        validation: What students are judged on.
        epochs: Passes over the data for a student.
        lr: Highest learning rate for a student.
        seeds: How many students.
        on_progress: Called with each line of progress.
        outcomes: What students came to.
    """

    tuner: FineTuner
    make_student: Callable[[], nn.Module] | None
    validation: Validation
    epochs: int
    lr: float
    seeds: int
    on_progress: Callable[[str], None]
    outcomes: list[StudentOutcome] = field(default_factory=list)

    def __call__(self, module: nn.Module, teacher: nn.Module | None) -> nn.Module:
        """Train a model.

        Args:
            module: A changed model, trained in place; or an untrained student, of which others are made.
            teacher: A model to distil from; None for the labels alone.

        Returns:
            The trained model, in eval mode on the CPU.

        Raises:
            VariantError: The training fails.
        """
        if not (self.make_student and isinstance(module, SignClassifier) and module.untrained):
            return self.tuner(module, teacher)
        students = [self._train_student(seed, teacher) for seed in range(self.seeds)]
        return students[0]

    def _train_student(self, seed: int, teacher: nn.Module | None) -> nn.Module:
        assert self.make_student is not None
        how = "alone" if teacher is None else "from the original"
        self.on_progress(f"Student {seed + 1} of {self.seeds} learns {how}, {self.epochs} epochs")
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            student = self.make_student()
        student.untrained = False  # type: ignore[assignment]  # a plain attribute, no parameter
        student = replace(self.tuner, epochs=self.epochs, lr=self.lr, seed=seed)(student, teacher)
        outcome = StudentOutcome(teacher is not None, seed, accuracy_of(student, self.validation))
        self.outcomes.append(outcome)
        self.on_progress(f"            {100 * outcome.accuracy:.1f} % of the held-out pictures right")
        return student


def accuracy_of(module: nn.Module, validation: Validation) -> float:
    """Share of right answers, 0 to 1."""
    right = 0
    with torch.inference_mode():
        for inputs, labels in zip(
            torch.split(validation.inputs, _BATCH), torch.split(validation.labels, _BATCH), strict=True
        ):
            right += int((module(inputs).argmax(dim=1) == labels).sum())
    return right / len(validation.labels)


def say_outcomes(student: str, epochs: int, outcomes: Sequence[StudentOutcome]) -> tuple[str, ...]:
    """What students came to, in sentences for the document.

    The mean gain of the paired seeds comes with its 95 % interval (Student's t), which is about the chance of weights
    and order only: the held-out pictures are the same.

    Args:
        student: Its name.
        epochs: Passes over the data.
        outcomes: What the students came to.
    """
    sides = {
        distilled: {outcome.seed: outcome.accuracy for outcome in outcomes if outcome.distilled is distilled}
        for distilled in (True, False)
    }
    said = [
        f"{student} trained {how}, {epochs} epochs: "
        f"{', '.join(f'{100 * share:.1f}' for _, share in sorted(side.items()))} % with seeds "
        f"{', '.join(str(seed) for seed in sorted(side))}; its row is that of seed {min(side)}."
        for how, side in (("from the original (distilled)", sides[True]), ("on the labels alone", sides[False]))
        if side
    ]
    gains = [100 * (sides[True][seed] - sides[False][seed]) for seed in sorted(sides[True].keys() & sides[False])]
    if len(gains) == 1:
        said.append(f"Distilling changed {gains[0]:+.1f} points with one seed, which cannot tell it from chance.")
    if len(gains) > 1:
        mean, half = _mean_and_half_width(gains)
        said.append(
            f"Distilling changed {mean:+.1f} points on average over {len(gains)} seeds "
            f"(95 % interval {mean - half:+.1f} to {mean + half:+.1f})."
        )
    return tuple(said)


def _mean_and_half_width(values: Sequence[float]) -> tuple[float, float]:
    from scipy.stats import t

    spread = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), float(t.ppf(0.975, len(values) - 1)) * spread
