"""Compare distilled students with students trained on the labels alone, and write ``results/distillation.md``.

Two tables, each over paired seeds:

- *Gain*: the recipe's ``cnn-bn`` as the student of three averaged networks of its kind, which trained longer and on
  augmented pictures, in five situations where soft labels might help. With so few pictures, a single larger network was
  no better than the student: a ResNet-18 had 64 %, the student 71 %.
- *Stability*: the recipe's ``cnn``, which has no batch norms after its convolutions, at several learning rates.

Run ``python -m benchmarks.models.distillation FOLDER [FOLDER ...]`` with folders of pictures that the recipe can read.
Each set is split by capture once. The intervals (Student's t) cover the randomness of weights and order only.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import TextWrapper

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.options import make_parser, markdown_table, write_page
from benchmarks.quiet import be_quiet
from benchmarks.versions import device_name, versions_text
from lightning_perf.inference import FineTuner, Validation, VariantError
from lightning_perf.inference.training import TEMPERATURES
from recipes.signlang.data.data_module import augment
from recipes.signlang.data.image_set import read_image_set
from recipes.signlang.data.split import split_images
from recipes.signlang.inference.distillation import accuracy_of
from recipes.signlang.settings import SplitKind
from recipes.signlang.training.model import SignClassifier, build_model

RESULTS = Path(__file__).parents[1] / "results" / "distillation.md"
SIZE = 24
"""Width and height of the pictures in pixels: small, so that hundreds of trainings take minutes."""
BATCH = 32
EPOCHS = 6
LR = 0.03
"""The recipe's default for a student."""
RATES = (0.03, 0.1, 0.3)
"""Learning rates for the table of stability; after the first folder, only the first rate."""
HELD_OUT = 1 / 3
"""Share of the captures that judge."""
VIEWS = 8
"""Augmented copies of each picture; every epoch uses the next one."""
MEMBERS = 3
"""Networks that a teacher averages."""
TEACHER_EPOCHS = 3 * EPOCHS
FEW = 5
"""One training capture in so many keeps its label in the cases with few labels."""


class Batches:
    """Shuffled batches of float32 pictures; each pass uses the next view of every picture.

    Args:
        views: Pictures, ``(views, n, 1, size, size)`` of uint8.
        labels: Class indices, ``(n,)``.
        rows: Rows to use.
    """

    def __init__(self, views: Tensor, labels: Tensor, rows: Tensor) -> None:
        self._views, self._labels, self._rows = views, labels, rows
        self._passes = 0

    def __len__(self) -> int:
        return max(1, len(self._rows) // BATCH)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        view = self._views[self._passes % len(self._views)]
        self._passes += 1
        order = self._rows[torch.randperm(len(self._rows))]
        for start in range(len(self)):
            rows = order[start * BATCH : (start + 1) * BATCH]
            yield view[rows].float(), self._labels[rows]


class Remembering(nn.Module):
    """A teacher that remembers its logits for each picture, because many students ask for the same ones.

    Args:
        network: The teacher.
        size: Width and height of its pictures; larger ones are scaled down.
    """

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self._network = (network.eval(),)
        self._size = size
        self._logits: dict[bytes, Tensor] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> Remembering:
        return self

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logits, ``(n, classes)``."""
        keys = [picture.numpy().tobytes() for picture in pictures]
        new = [row for row, key in enumerate(keys) if key not in self._logits]
        if new:
            scaled = functional.adaptive_avg_pool2d(pictures[new], self._size)
            with torch.no_grad():
                self._logits.update(zip((keys[row] for row in new), self._network[0](scaled), strict=True))
        return torch.stack([self._logits[key] for key in keys])


@dataclass(frozen=True, eq=False)
class Pictures:
    """One data set, split by capture.

    Attributes:
        name: Name of its folder.
        size: Width and height in pixels.
        classes: Number of labels.
        pictures: ``(n, 1, size, size)`` of uint8.
        labels: ``(n,)``.
        training: Rows that train.
        few: A fifth of them, by capture.
        trial: Four fifths and a fifth of `training`, to choose the temperature with.
        validation: Held-out pictures.
    """

    name: str
    size: int
    classes: int
    pictures: Tensor
    labels: Tensor
    training: Tensor
    few: Tensor
    trial: tuple[Tensor, Tensor]
    validation: Validation

    @property
    def views(self) -> Tensor:
        """The pictures as a single view."""
        return self.pictures.unsqueeze(0)


def read_pictures(folder: Path, size: int) -> Pictures:
    """Read and split a dataset."""
    images = read_image_set(folder, size)
    split = split_images(images, SplitKind.CAPTURE, HELD_OUT, seed=0)
    rest, few = _some_captures(images.labels, images.captures, split.training)
    pictures, labels = torch.from_numpy(images.pictures).unsqueeze(1), torch.from_numpy(images.labels)
    held_out = torch.from_numpy(split.held_out)
    return Pictures(
        name=folder.name,
        size=size,
        classes=len(images.classes),
        pictures=pictures,
        labels=labels,
        training=torch.from_numpy(split.training),
        few=few,
        trial=(rest, few),
        validation=Validation(pictures[held_out].float(), labels[held_out]),
    )


def _some_captures(
    labels: NDArray[np.int64], captures: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    """Split rows into captures that lose their label and one in `FEW`, per label, that keeps it."""
    rng = np.random.default_rng(0)
    kept = np.zeros(len(rows), bool)
    for label in np.unique(labels[rows]):
        own = np.unique(captures[rows][labels[rows] == label])
        kept |= np.isin(captures[rows], rng.choice(own, max(1, len(own) // FEW), replace=False))
    return torch.from_numpy(rows[~kept]), torch.from_numpy(rows[kept])


@dataclass(frozen=True)
class Side:
    """One kind of student in a case: its training data, passes, teacher and weight of the soft labels."""

    data: Batches
    epochs: int
    teacher: nn.Module | None = None
    alpha: float = 0.5


@dataclass(frozen=True)
class Case:
    """A situation, with students trained on the labels alone and distilled students."""

    name: str
    alone: Side
    distilled: Side


def make_cases(pictures: Pictures) -> tuple[nn.Module, list[Case]]:
    """Train the teachers, and return the one of all pictures with the situations to compare."""
    torch.manual_seed(0)
    moved = torch.stack([augment(pictures.pictures) for _ in range(VIEWS)])
    teacher = train_teacher(pictures, Batches(moved, pictures.labels, pictures.training), TEACHER_EPOCHS)
    # As many steps as the teacher of all pictures.
    modest = train_teacher(pictures, Batches(moved, pictures.labels, pictures.few), FEW * TEACHER_EPOCHS)
    usual = Batches(pictures.views, pictures.labels, pictures.training)
    few = Batches(pictures.views, pictures.labels, pictures.few)
    views = Batches(moved, pictures.labels, pictures.training)
    few_alone = Side(few, FEW * EPOCHS)
    return teacher, [
        Case("all pictures", Side(usual, EPOCHS), Side(usual, EPOCHS, teacher)),
        Case("a fifth of the pictures, teacher trained on all", few_alone, Side(few, FEW * EPOCHS, teacher)),
        Case("a fifth labelled, the teacher labels the rest", few_alone, Side(usual, EPOCHS, modest, alpha=1.0)),
        Case("twice as long", Side(usual, 2 * EPOCHS), Side(usual, 2 * EPOCHS, teacher)),
        Case("twice as long, augmented", Side(views, 2 * EPOCHS), Side(views, 2 * EPOCHS, teacher)),
    ]


class Average(nn.Module):
    """The mean of the log-probabilities of several networks, as logits."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logits, ``(n, classes)``."""
        return torch.stack([functional.log_softmax(network(pictures), 1) for network in self.networks]).mean(0)


def train_teacher(pictures: Pictures, data: Batches, epochs: int) -> Remembering:
    """Train the networks of a teacher and print its accuracy."""
    networks = []
    for member in range(MEMBERS):
        network = new_student("cnn-bn", pictures, seed=1000 + member)
        networks.append(FineTuner(data, epochs=epochs, lr=LR, seed=1000 + member)(network, None))
    teacher = Average(networks).eval()
    teachers.append(f"{pictures.name} {100 * accuracy_of(teacher, pictures.validation):.1f} %")
    print(f"teacher: {teachers[-1]}", flush=True)
    return Remembering(teacher, pictures.size)


teachers: list[str] = []
"""Accuracy of each teacher so far."""


def new_student(model: str, pictures: Pictures, seed: int) -> nn.Module:
    """Make an untrained student; the seed decides its weights."""
    torch.manual_seed(seed)
    return SignClassifier(build_model(model, pictures.classes, pictures.size))


def train_side(side: Side, pictures: Pictures, seed: int, temperature: float) -> float | None:
    """Return a student's accuracy in per cent; None if its training diverged."""
    tuner = FineTuner(side.data, epochs=side.epochs, lr=LR, seed=seed, temperature=temperature, alpha=side.alpha)
    return _share(lambda seed: tuner(new_student("cnn-bn", pictures, seed), side.teacher), pictures, seed)


def choose_temperature(side: Side, pictures: Pictures) -> float:
    """Choose the temperature as the recipe does: on a fifth of the training captures."""
    assert side.teacher is not None
    training, judging = pictures.trial
    tuner = FineTuner(Batches(pictures.views, pictures.labels, training), epochs=EPOCHS, lr=LR, alpha=side.alpha)
    held_out = [(pictures.pictures[judging].float(), pictures.labels[judging])]
    return tuner.choose_temperature(new_student("cnn-bn", pictures, 0), side.teacher, held_out)


def gain_rows(pictures: Pictures, cases: Sequence[Case], seeds: int) -> list[tuple[str, ...]]:
    """Measure the situations of one data set, and return rows of the table."""
    rows: list[tuple[str, ...]] = []
    alone_of: dict[Side, list[float | None]] = {}
    for case in cases:
        began = time.process_time()
        temperature = choose_temperature(case.distilled, pictures)
        if case.alone not in alone_of:
            alone_of[case.alone] = [train_side(case.alone, pictures, seed, temperature) for seed in range(seeds)]
        alone = alone_of[case.alone]
        distilled = [train_side(case.distilled, pictures, seed, temperature) for seed in range(seeds)]
        figures = _shares(alone), f"{temperature:g}", _shares(distilled), _gain(alone, distilled)
        rows.append((pictures.name, case.name, *figures))
        print(*rows[-1], f"{time.process_time() - began:.0f} s", sep=" | ", flush=True)
    return rows


def stability_rows(pictures: Pictures, teacher: nn.Module, rates: Sequence[float], seeds: int) -> list[tuple[str, ...]]:
    """Distil the CNN without batch norms at several learning rates."""
    batches = Batches(pictures.views, pictures.labels, pictures.training)
    rows: list[tuple[str, ...]] = []
    for lr in rates:

        def train(seed: int, lr: float = lr) -> nn.Module:
            tuner = FineTuner(batches, epochs=EPOCHS, lr=lr, seed=seed)
            return tuner(new_student("cnn", pictures, seed), teacher)

        shares = [_share(train, pictures, seed) for seed in range(seeds)]
        each = ", ".join("diverged" if share is None else f"{share:.1f}" for share in shares)
        rows.append((pictures.name, f"{lr:g}", each, str(sum(share is None for share in shares))))
        print(*rows[-1], sep=" | ", flush=True)
    return rows


def _share(make: Callable[[int], nn.Module], pictures: Pictures, seed: int) -> float | None:
    """Return the accuracy of a trained student in per cent; None if its training diverged."""
    try:
        return 100 * accuracy_of(make(seed), pictures.validation)
    except VariantError as error:
        print(f"    seed {seed}: {error}", flush=True)
        return None


def _shares(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    return _interval(there) + ("" if len(there) == len(values) else f" of {len(there)} seeds")


def _gain(alone: Sequence[float | None], distilled: Sequence[float | None]) -> str:
    gains = [d - a for a, d in zip(alone, distilled, strict=True) if a is not None and d is not None]
    return _interval(gains, sign="+")


def _interval(values: Sequence[float], sign: str = "") -> str:
    if len(values) < 2:
        return "–"
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return f"{mean:{sign}.1f} ({mean - half:{sign}.1f} to {mean + half:{sign}.1f})"


def report(gains: Sequence[tuple[str, ...]], stability: Sequence[tuple[str, ...]], seeds: int, seconds: float) -> str:
    """Return the page of results."""
    temperatures = ", ".join(f"{temperature:g}" for temperature in TEMPERATURES)
    introduction = (
        f"Written by `python -m benchmarks.models.distillation`: {seeds} seeds, {seconds / 60:.0f} minutes of CPU time "
        f"on one thread. {device_name()}; {versions_text()}."
    )
    method = (
        "The tables show accuracy in per cent on held-out captures, as mean and 95 % interval (Student's t) over "
        "seeds. Students with the same seed start from the same weights. The split and the teacher are the same for "
        "all seeds, so the intervals cover the randomness of weights and order only."
    )
    gain = (
        f"The student is `cnn-bn`, on pictures of {SIZE} pixels, for {EPOCHS} epochs unless the row says otherwise. "
        f"The teacher averages {MEMBERS} such networks that trained {TEACHER_EPOCHS} epochs on augmented pictures. The "
        f"temperature T is the best of {temperatures} on a fifth of the training captures. With a fifth of the "
        "pictures, students train for as many steps as with all of them. Accuracy of the teachers, with all labels and "
        f"with a fifth of them: {', '.join(teachers)}."
    )
    stable = (
        f"The student is `cnn`, which has no batch norm after its convolutions, for {EPOCHS} epochs. The defaults are "
        "T = 2, a rate divided by αT + 1 − α, a warm-up over a tenth of the steps, and gradients clipped to norm 5. A "
        "training counts as diverged if `Distillation` reports it. Chance is 4 % for 25 letters, 10 % for 10 digits."
    )
    wrap = TextWrapper(width=128, break_on_hyphens=False).wrap
    lines = [
        *("# Distillation", "", *wrap(introduction), "", *wrap(method), ""),
        *("## Does a teacher help?", "", *wrap(gain), ""),
        markdown_table(("data", "case", "labels alone", "T", "distilled", "gain in points"), gains, 4),
        *("", "## Is the training stable?", "", *wrap(stable), ""),
        markdown_table(("data", "rate", "accuracy by seed", "diverged"), stability, 1),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and write."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument(
        "data", nargs="+", type=Path, metavar="FOLDER", help="folders of pictures that the recipe reads"
    )
    parser.add_argument("--seeds", type=int, default=5, help="students of each kind (default: %(default)s)")
    options = parser.parse_args()
    be_quiet()
    torch.set_num_threads(1)
    began = time.process_time()
    gains: list[tuple[str, ...]] = []
    stability: list[tuple[str, ...]] = []
    for folder in options.data:
        pictures = read_pictures(folder, SIZE)
        teacher, cases = make_cases(pictures)
        gains += gain_rows(pictures, cases, options.seeds)
        rates = RATES[:1] if stability else RATES
        stability += stability_rows(pictures, teacher, rates, options.seeds)
    write_page(options.results, report(gains, stability, options.seeds, time.process_time() - began))


if __name__ == "__main__":
    main()
