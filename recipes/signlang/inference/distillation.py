"""Train the variants that need it: changed models briefly, students from fresh weights with several seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from msgspec import structs
from torch import Tensor, nn

from lightning_perf.inference import FineTuner, Validation, VariantError
from lightning_perf.inference.training import TEMPERATURES
from recipes.signlang.data.data_module import SignData
from recipes.signlang.training.model import SignClassifier, build_model

_BATCH = 64


def student_maker(model: str, classes: int, image_size: int) -> Callable[[], nn.Module]:
    """Return a function that makes an untrained student.

    Args:
        model: A key of `recipes.signlang.training.model.MODELS`.
        classes: Number of labels.
        image_size: Width and height of the pictures in pixels.
    """
    return lambda: SignClassifier(build_model(model, classes, image_size), untrained=True)


@dataclass(frozen=True)
class StudentOutcome:
    """The result of training one student.

    Attributes:
        distilled: Whether it also learned from the teacher.
        seed: Seed of its weights and of the order of the pictures.
        accuracy: Accuracy on the held-out pictures, 0 to 1; None if the training failed or diverged.
        temperature: Temperature of the soft labels; None without a teacher.
        problem: How the training failed or diverged; None if it did not.
    """

    distilled: bool
    seed: int
    accuracy: float | None
    temperature: float | None = None
    problem: str | None = None


@dataclass(frozen=True, eq=False)
class TemperatureData:
    """Two parts of the training pictures, to choose the temperature with.

    Attributes:
        training: Pictures that the trial students train on.
        held_out: Batches of the other training pictures, to judge them.
    """

    training: SignData
    held_out: Sequence[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class StudyTraining:
    """A `FineTune` that fine-tunes changed models, and trains an untrained student once for each seed.

    Students with the same seed start from the same weights and see the same pictures in the same order, with or without
    a teacher. The student of the first seed becomes the variant, even if another one is better. `outcomes` has the
    results of all of them.

    Attributes:
        tuner: Trains changed models. Students use its data and settings, except for epochs, rate and seed.
        make_student: Makes an untrained student; None without students.
        validation: Held-out pictures that students are judged on.
        epochs: Passes over the data for a student.
        lr: Highest learning rate for a student.
        seeds: Number of students.
        on_progress: Called with each line of progress.
        temperature_data: Pictures to choose the temperature with; None keeps the temperature of `tuner`.
        outcomes: Results of the students so far.
    """

    tuner: FineTuner
    make_student: Callable[[], nn.Module] | None
    validation: Validation
    epochs: int
    lr: float
    seeds: int
    on_progress: Callable[[str], None]
    temperature_data: TemperatureData | None = None
    outcomes: list[StudentOutcome] = field(default_factory=list)

    def __call__(self, module: nn.Module, teacher: nn.Module | None) -> nn.Module:
        """Train a model.

        Args:
            module: A changed model, which is trained in place, or an untrained student.
            teacher: A model to distil from; None to train on the labels alone.

        Returns:
            The trained model, in eval mode on the CPU.

        Raises:
            VariantError: The training fails or diverges. Of several students, the first one decides.
        """
        if not (self.make_student and isinstance(module, SignClassifier) and module.untrained):
            return self.tuner(module, teacher)
        tuner = structs.replace(self.tuner, epochs=self.epochs, lr=self.lr)
        if teacher is not None and self.temperature_data is not None:
            tuner = structs.replace(tuner, temperature=self._choose_temperature(tuner, teacher, self.temperature_data))
        students = [self._train_student(structs.replace(tuner, seed=seed), teacher) for seed in range(self.seeds)]
        if isinstance(students[0], VariantError):
            raise students[0]
        return students[0]

    def _choose_temperature(self, tuner: FineTuner, teacher: nn.Module, data: TemperatureData) -> float:
        shown = ", ".join(f"{temperature:g}" for temperature in TEMPERATURES)
        self.on_progress(f"Choosing the temperature from {shown} on a fifth of the training pictures")
        trial = structs.replace(tuner, data=data.training, seed=0)
        temperature = trial.choose_temperature(self._new_student(0), teacher, data.held_out)
        self.on_progress(f"            temperature {temperature:g}")
        return temperature

    def _new_student(self, seed: int) -> nn.Module:
        assert self.make_student is not None
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            student = self.make_student()
        student.untrained = False  # type: ignore[assignment]  # a plain attribute, not a parameter
        return student

    def _train_student(self, tuner: FineTuner, teacher: nn.Module | None) -> nn.Module | VariantError:
        how = "on the labels alone" if teacher is None else "from the original"
        self.on_progress(f"Student {tuner.seed + 1} of {self.seeds} learns {how}, {self.epochs} epochs")
        outcome = StudentOutcome(
            distilled=teacher is not None,
            seed=tuner.seed,
            accuracy=None,
            temperature=None if teacher is None else tuner.temperature,
        )
        try:
            student = tuner(self._new_student(tuner.seed), teacher)
        except VariantError as error:
            self.outcomes.append(replace(outcome, problem=str(error)))
            self.on_progress(f"            {error}")
            return error
        accuracy = accuracy_of(student, self.validation)
        self.outcomes.append(replace(outcome, accuracy=accuracy))
        self.on_progress(f"            {100 * accuracy:.1f} % of the held-out pictures are correct")
        return student


def accuracy_of(module: nn.Module, validation: Validation) -> float:
    """Return the share of correct answers, 0 to 1."""
    right = 0
    with torch.inference_mode():
        for inputs, labels in zip(
            torch.split(validation.inputs, _BATCH), torch.split(validation.labels, _BATCH), strict=True
        ):
            right += int((module(inputs).argmax(dim=1) == labels).sum())
    return right / len(validation.labels)


def describe_outcomes(student: str, epochs: int, outcomes: Sequence[StudentOutcome]) -> tuple[str, ...]:
    """Describe the results of the students in sentences for the document.

    The mean gain over paired seeds comes with its 95 % interval (Student's t). The interval covers the randomness of
    weights and order only: all students share the same held-out pictures.

    Args:
        student: Name of the student.
        epochs: Passes over the data.
        outcomes: Results of the students.
    """
    notes: list[str] = []
    shares: dict[bool, dict[int, float]] = {True: {}, False: {}}
    for distilled, how in ((True, "from the original (distilled)"), (False, "on the labels alone")):
        side = sorted((one for one in outcomes if one.distilled is distilled), key=lambda one: one.seed)
        if not side:
            continue
        if side[0].temperature is not None:
            how = f"{how[:-1]} at temperature {side[0].temperature:g})"
        shares[distilled] = {one.seed: one.accuracy for one in side if one.accuracy is not None}
        if shares[distilled]:
            notes.append(
                f"{student} trained {how}, {epochs} epochs: "
                f"{', '.join(f'{100 * share:.1f}' for share in shares[distilled].values())} % with seeds "
                f"{', '.join(map(str, shares[distilled]))}; its row is the one of seed {side[0].seed}."
            )
        problems = [one for one in side if one.problem is not None]
        notes += [f"{student} trained {how} with seed {one.seed}: {one.problem}." for one in problems]
    gains = [100 * (shares[True][seed] - shares[False][seed]) for seed in sorted(shares[True].keys() & shares[False])]
    if len(gains) == 1:
        notes.append(f"Distilling changed {gains[0]:+.1f} points with one seed, which may be chance. Use more --seeds.")
    if len(gains) > 1:
        mean, half = _mean_and_half_width(gains)
        notes.append(
            f"Distilling changed {mean:+.1f} points on average over {len(gains)} seeds "
            f"(95 % interval {mean - half:+.1f} to {mean + half:+.1f}){_verdict(mean - half, mean + half)}."
        )
    return tuple(notes)


def _verdict(low: float, high: float) -> str:
    if low > 0:
        return ""
    return ": it made the student worse" if high < 0 else ": no gain was shown"


def _mean_and_half_width(values: Sequence[float]) -> tuple[float, float]:
    from scipy.stats import t

    spread = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), float(t.ppf(0.975, len(values) - 1)) * spread
