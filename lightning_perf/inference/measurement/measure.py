"""Measure latency and throughput of variants in alternating rounds, so that drift of the machine affects all alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.statistics.exact import walsh_ratio
from lightning_perf.statistics.values import Estimate
from lightning_perf.workers.channel import Message

if TYPE_CHECKING:
    from lightning_perf.inference.model import Validation


class Time(Message, frozen=True):
    """Time calls with a batch of this size, after some untimed ones, for at least this long and this many calls."""

    batch: int
    warmup: int
    seconds: float
    least: int
    most: int


class Timed(Message, frozen=True):
    """Wall time, process CPU time and device time between events (CUDA only) of each call."""

    wall_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]
    device_ns: tuple[int, ...]


Timer = Callable[[Time], Timed]
"""Times calls of one variant."""

Rounds = tuple[Timed, ...]
"""The timed calls of one variant, by round."""

P99_CALLS = 100
"""Fewest calls for a 99th percentile. With fewer calls it would just be the slowest one."""

P90_CALLS = 10
"""Fewest calls for a 90th percentile."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Number and duration of the timed calls.

    Attributes:
        seconds: Time for each variant, batch size and number of threads.
        rounds: Number of rounds in that time; each variant runs once per round.
        warmup: Untimed calls before the first round.
        rewarm: Untimed calls before each later round: other variants ran in between and filled the caches.
        least_calls: Fewest timed calls per round, even if they take longer.
        most_calls: Most timed calls per round.
    """

    seconds: float = 3.0
    rounds: int = 10
    warmup: int = 10
    rewarm: int = 2
    least_calls: int = 2
    most_calls: int = 1000


class Latency(Struct, frozen=True):
    """Latency of one variant with one batch size and number of threads.

    Attributes:
        threads: CPU threads.
        batch: Inputs per call.
        calls: Number of timed calls.
        p10_ms: 10th percentile of the wall time per call.
        p50_ms: Median.
        p90_ms: 90th percentile; None with fewer than 10 calls.
        p99_ms: 99th percentile; None with fewer than 100 calls.
        cpu_ms: Median CPU time of the process per call, summed over all threads.
        device_ms: Median time between events on the device; None on a CPU.
        throughput: Inputs per second, over all timed calls.
        speedup: Speed-up over the baseline, with its interval (`speedup`); None for the baseline.
    """

    threads: int
    batch: int
    calls: int
    p10_ms: float
    p50_ms: float
    p90_ms: float | None
    p99_ms: float | None
    cpu_ms: float
    device_ms: float | None
    throughput: float
    speedup: Estimate | None

    @property
    def slow_ms(self) -> float:
        """The 90th percentile, or the median if there are too few calls for it."""
        return self.p50_ms if self.p90_ms is None else self.p90_ms


def take_turns(
    timers: Mapping[str, Timer],
    batch: int,
    effort: Effort,
    failed: Callable[[str, VariantError], None],
) -> dict[str, Rounds]:
    """Time variants in alternating rounds, and return the rounds of each one that did not fail.

    Every second round runs in reverse order, so that no variant always follows the same one. `failed` gets each variant
    that fails; the others continue without it.
    """
    turns: dict[str, Rounds] = dict.fromkeys(timers, ())
    for number in range(effort.rounds):
        warmup = effort.rewarm if number else effort.warmup
        order = Time(batch, warmup, effort.seconds / effort.rounds, effort.least_calls, effort.most_calls)
        for name in reversed(list(turns)) if number % 2 else list(turns):
            try:
                turns[name] += (timers[name](order),)
            except VariantError as error:  # noqa: PERF203  (the timed calls take much longer)
                del turns[name]
                failed(name, error)
    return turns


def summarise(rounds: Rounds, baseline: Rounds | None, *, batch: int, threads: int) -> Latency:
    """Summarise the timed calls of a variant; the baseline itself has no baseline."""
    walls = np.concatenate([turn.wall_ns for turn in rounds])
    devices = np.concatenate([turn.device_ns for turn in rounds])
    p10, p50, p90, p99 = (float(value) / 1e6 for value in np.percentile(walls, (10, 50, 90, 99)))
    return Latency(
        threads=threads,
        batch=batch,
        calls=len(walls),
        p10_ms=p10,
        p50_ms=p50,
        p90_ms=p90 if len(walls) >= P90_CALLS else None,
        p99_ms=p99 if len(walls) >= P99_CALLS else None,
        cpu_ms=float(np.median(np.concatenate([turn.cpu_ns for turn in rounds]))) / 1e6,
        device_ms=float(np.median(devices)) / 1e6 if len(devices) else None,
        throughput=batch * len(walls) / (float(walls.sum()) / 1e9),
        speedup=speedup(rounds, baseline) if baseline is not None else None,
    )


def speedup(rounds: Rounds, baseline: Rounds) -> Estimate:
    """Return the speed-up of one variant over another, from their median times in the same rounds."""
    times, base = ([float(np.median(turn.wall_ns)) for turn in turns] for turns in (rounds, baseline))
    return walsh_ratio(times, base)


Z95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""


class Accuracy(Struct, frozen=True):
    """Accuracy of a variant, and its agreement with the original.

    Attributes:
        correct: Number of correct answers.
        n: Number of inputs.
        units: Number of independent inputs, for the intervals.
        low: Lower end of the 95 % Wilson interval of the accuracy, 0 to 1.
        high: Upper end of that interval.
        agreement: Share of the inputs for which variant and original give the same class.
        drop_points: Accuracy of the original minus the accuracy of the variant, in percentage points.
        drop_low_points: Lower end of the 95 % interval of the drop; None for the original itself.
        drop_high_points: Upper end of that interval.
        chance_agreement: Agreement of predictions that have nothing to do with the original's, but give each class as
            often (Cohen, Educ. Psychol. Meas. 20, 1960); None for the original itself.
    """

    correct: int
    n: int
    units: int
    low: float
    high: float
    agreement: float
    drop_points: float
    drop_low_points: float | None
    drop_high_points: float | None
    chance_agreement: float | None = None

    @property
    def share(self) -> float:
        """Share of correct answers, 0 to 1."""
        return self.correct / self.n


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Return the 95 % score interval of a proportion (Wilson, J. Am. Stat. Assoc. 22, 1927)."""
    denominator = 1 + Z95**2 / n
    centre = (share + Z95**2 / (2 * n)) / denominator
    half = Z95 * math.sqrt(share * (1 - share) / n + Z95**2 / (4 * n**2)) / denominator
    return max(0.0, centre - half), min(1.0, centre + half)


def compare_accuracy(
    predicted: NDArray[np.int64],
    original: NDArray[np.int64],
    labels: NDArray[np.int64],
    units: int | None = None,
    *,
    is_original: bool = False,
) -> Accuracy:
    """Count a variant's correct answers and compare them with the original's.

    Both classify the same inputs, so the drop is a difference of paired proportions. Its interval is the adjusted Wald
    interval of Bonett & Price (J. Educ. Behav. Stat. 37, 2012). It depends on the inputs that only one of the two gets
    right.

    The arrays hold class indices, ``(n,)``. `units` is the number of independent inputs; all of them if not given.
    """
    n = len(labels)
    trials = n if units is None else units
    right, base = predicted == labels, original == labels
    correct = int(right.sum())
    low, high = wilson_interval(correct / n, trials)
    drop_low = drop_high = None
    if not is_original:
        lost = trials * float((base & ~right).mean())
        won = trials * float((right & ~base).mean())
        first, second = (lost + 1) / (trials + 2), (won + 1) / (trials + 2)
        half = Z95 * math.sqrt(max(0.0, first + second - (first - second) ** 2) / (trials + 2))
        drop_low, drop_high = (
            100 * max(-1.0, first - second - half),
            100 * min(1.0, first - second + half),
        )
    classes = int(max(predicted.max(), original.max())) + 1
    counts = [np.bincount(each, minlength=classes) for each in (predicted, original)]
    return Accuracy(
        correct=correct,
        n=n,
        units=trials,
        low=low,
        high=high,
        agreement=float((predicted == original).mean()),
        drop_points=100 * (int(base.sum()) - correct) / n,
        drop_low_points=drop_low,
        drop_high_points=drop_high,
        chance_agreement=None if is_original else float(counts[0] @ counts[1]) / n**2,
    )


class Judge:
    """Compares the classes that variants predict with the labels, and with the original's predictions.

    Judge the original first. `work` is the folder for the file of inputs that the worker processes read.
    """

    def __init__(
        self, validation: Validation, input_shape: tuple[int, ...], output_shape: tuple[int, ...], work: Path
    ) -> None:
        shape = tuple(validation.inputs.shape[1:])
        if shape != input_shape:
            raise InferenceError(
                f"validation: inputs have the shape {shape}, but the model takes {input_shape}. "
                "Give validation inputs of that shape."
            )
        if len(output_shape) != 2:
            raise InferenceError(
                f"The model returns {output_shape} for a batch, but accuracy needs (n, classes). "
                "Leave out the validation data."
            )
        least, most, classes = int(validation.labels.min()), int(validation.labels.max()), output_shape[1]
        if most >= classes or least < 0:
            raise InferenceError(
                f"validation: labels from {least} to {most}, but the model has {classes} outputs. "
                "Check that the checkpoint and the dataset belong together."
            )
        self._path = work / "validation.npy"
        np.save(self._path, validation.inputs.float().numpy())
        self._labels: NDArray[np.int64] = validation.labels.numpy().astype(np.int64)
        self._units = validation.units
        self._classes = classes
        self._original: NDArray[np.int64] | None = None

    @property
    def n(self) -> int:
        """Number of validation inputs."""
        return len(self._labels)

    def judge(self, predict: Callable[[Path], NDArray[np.float32]]) -> Accuracy:
        """Let a variant predict all inputs, and return its accuracy."""
        classes: NDArray[np.int64] = predict(self._path).argmax(axis=1).astype(np.int64)
        first = self._original is None
        if self._original is None:
            self._original = classes
        return compare_accuracy(classes, self._original, self._labels, self._units, is_original=first)

    def notes(self) -> tuple[str, ...]:
        """Return a warning if the original is no better than guessing."""
        if self._original is None:
            return ()
        share = float((self._original == self._labels).mean())
        low, _ = wilson_interval(share, self._units or self.n)
        if low > 1 / self._classes:
            return ()
        note = (
            f"The accuracy of the original on the validation data is {100 * share:.1f} %, no better than guessing "
            f"among {self._classes} classes. Check the weights, the scaling of the inputs and the order of the classes."
        )
        return (note,)
