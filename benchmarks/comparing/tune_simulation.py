"""Simulate how often `lightning-perf tune` keeps a lever: useless ones, and ones that gain 5 or 10 %.

The times of windows are random and go through the functions that judge levers. A window's time spreads by 1.15 %. With
disturbed rounds, one window in one round of ten takes 30 % longer on average (exponentially distributed). With
different processes, each one is permanently faster or slower, by a normal 0.5 %. A trial has three processes, like a
real one: the baseline, the baseline again, and the training with the lever.

Run as ``python -m benchmarks.comparing.tune_simulation``: prints a Markdown table and writes it to
``benchmarks/results/``. It takes some seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.options import make_parser
from lightning_perf.statistics.location import paired_ratio
from lightning_perf.statistics.ranks import walsh_ratio
from lightning_perf.statistics.values import Estimate, Float64Array
from lightning_perf.tune.campaign import CONFIRMING_PAIRS
from lightning_perf.tune.measurement import is_confirmed, is_gain
from lightning_perf.tune.settings import TuneSettings

RESULTS = Path(__file__).parents[1] / "results" / "tune_simulation.md"
WINDOW_SPREAD = 0.0115
DISTURBED_ROUNDS = 0.1
DISTURBANCE = 0.3
PROCESS_SPREAD = 0.005


@dataclass(frozen=True)
class Scenario:
    """The true properties of the machine and the lever.

    Attributes:
        name: In words.
        gain: Share of the time that the lever saves.
        disturbed: Whether some rounds are.
        differ: Whether processes differ for good.
    """

    name: str
    gain: float = 0.0
    disturbed: bool = False
    differ: bool = False


SCENARIOS = (
    Scenario("nothing gained"),
    Scenario("… disturbed", disturbed=True),
    Scenario("… processes differ", differ=True),
    Scenario("5 % gained, disturbed", gain=0.05, disturbed=True),
)


@dataclass(frozen=True)
class Trial:
    """Times of the windows of a trial, ``(rounds,)`` each.

    Attributes:
        noise: The training as it is and once more, in the same rounds.
        lever: The training as it is and with the lever, in the same rounds.
    """

    noise: tuple[Float64Array, Float64Array]
    lever: tuple[Float64Array, Float64Array]


RULES: dict[str, Callable[[Trial], bool]] = {
    "Student's interval below 1": lambda trial: _below_1(paired_ratio(*trial.lever)),
    "signed-rank interval below 1": lambda trial: _below_1(walsh_ratio(*trial.lever)),
    "**and beyond the training's own noise**": lambda trial: is_gain(
        walsh_ratio(*trial.lever), walsh_ratio(*trial.noise)
    ),
}


def draw(scenario: Scenario, rounds: int, rng: np.random.Generator) -> Trial:
    """One trial."""
    base, twin, candidate = np.exp(rng.normal(0, PROCESS_SPREAD, 3)) if scenario.differ else np.ones(3)
    return Trial(
        _windows(base, twin, scenario, rounds, rng),
        _windows(base, candidate * (1 - scenario.gain), scenario, rounds, rng),
    )


def _windows(
    one: float, other: float, scenario: Scenario, rounds: int, rng: np.random.Generator
) -> tuple[Float64Array, Float64Array]:
    times = np.array([[one], [other]]) * np.exp(rng.normal(0, WINDOW_SPREAD, (2, rounds)))
    if scenario.disturbed:
        hit = np.flatnonzero(rng.random(rounds) < DISTURBED_ROUNDS)
        times[rng.integers(0, 2, len(hit)), hit] *= 1 + rng.exponential(DISTURBANCE, len(hit))
    return times[0], times[1]


def _below_1(ratio: Estimate) -> bool:
    return ratio.high is not None and ratio.high < 1


def table(trials: int, rounds: int) -> str:
    """How often each rule keeps the lever, as a Markdown table."""
    lines = [
        f"| kept when | {' | '.join(scenario.name for scenario in SCENARIOS)} |",
        f"|---|{'---:|' * len(SCENARIOS)}",
    ]
    drawn = [
        [draw(scenario, rounds, rng) for _ in range(trials)]
        for scenario, rng in zip(SCENARIOS, np.random.default_rng(0).spawn(len(SCENARIOS)), strict=True)
    ]
    for name, kept in RULES.items():
        shares = [sum(map(kept, each)) / trials for each in drawn]
        lines.append(f"| {name} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |")
    return "\n".join(lines)


SPREADS = (0.0, 0.005, 0.01, 0.02)
LEVERS = 8


def tuning(spread: float, gains: Sequence[float], rounds: int, rng: np.random.Generator) -> tuple[bool, bool]:
    """Simulate a whole tuning, with processes that differ by a normal `spread`.

    Args:
        spread: Standard deviation of the time of processes.
        gains: The share of the time that each lever saves.
        rounds: Windows of each side in a pair of processes.
        rng: Random numbers.

    Returns:
        Whether any lever passes one pair of processes, and whether any passes the two fresh pairs after it too.
    """
    quiet = Scenario("quiet")

    def pair(base: float, candidate: float) -> Estimate:
        return walsh_ratio(*_windows(base, candidate, quiet, rounds, rng))

    def process() -> float:
        return float(np.exp(rng.normal(0, spread)))

    base = process()
    noise = [pair(base, process()), pair(base, process())]
    screened = kept = False
    for gain in gains:
        pairs = [pair(base, process() * (1 - gain))]
        if not is_gain(pairs[0], noise[0]):
            continue
        screened = True
        pairs += [pair(process(), process() * (1 - gain)) for _ in range(CONFIRMING_PAIRS)]
        kept = kept or is_confirmed(pairs, noise, LEVERS)
    return screened, kept


def family_table(tunings: int, rounds: int) -> str:
    """How often a tuning keeps any of several useless levers, and one that gains, as a Markdown table."""
    lines = [
        f"| processes differ by | any of {LEVERS} useless passes a pair | … is kept | 10 % gained | 5 % gained |",
        "|---|---:|---:|---:|---:|",
    ]
    for spread, rng in zip(SPREADS, np.random.default_rng(1).spawn(len(SPREADS)), strict=True):
        useless = [tuning(spread, [0.0] * LEVERS, rounds, rng) for _ in range(tunings)]
        shares = [sum(each) / tunings for each in zip(*useless, strict=True)]
        shares += [
            sum(tuning(spread, [gain], rounds, rng)[1] for _ in range(tunings)) / tunings for gain in (0.1, 0.05)
        ]
        lines.append(f"| {100 * spread:g} % | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |")
    return "\n".join(lines)


def main() -> None:
    """Simulate, print and write."""
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("--trials", type=int, default=4000)
    parser.add_argument("--tunings", type=int, default=2000)
    parser.add_argument("--rounds", type=int, nargs="+", default=[TuneSettings.rounds, 8])
    options = parser.parse_args()
    parts = [
        "# How often a lever is kept",
        (
            f"Written by `python -m benchmarks.comparing.tune_simulation`: {options.tunings} tunings, "
            f"{options.trials} trials. The times of windows spread by {100 * WINDOW_SPREAD:.3g} %."
        ),
        "## Whole tunings",
        f"{TuneSettings.rounds} rounds. The last two columns are the shares in which a lever with that gain is kept.",
        family_table(options.tunings, TuneSettings.rounds),
        "## Single pairs of processes",
    ]
    for rounds in options.rounds:
        parts += [f"{rounds} rounds:", table(options.trials, rounds)]
    text = "\n\n".join(parts) + "\n"
    print(text)
    options.results.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
