"""Coverage and false positives of the statistics of repeated runs, by simulation.

The simulation calls the functions that `lightning-perf compare` uses, with run times of a known true ratio. The module
`verdict_noise` simulates the verdicts under further kinds of noise. All scenarios have 2 % spread between runs, and
between blocks:

- normal: logarithms of the times are normal;
- outliers: one run in ten is slower by 5 to 25 %;
- drift: all times grow by 5 % from the first run to the last, orders balanced and random within blocks;
- drift, AAA BBB: the same without blocks, all runs of one arm before the other's, which blocks prevent.

Run as ``python -m benchmarks.comparing.run_statistics``: prints a Markdown table and writes it to
``benchmarks/results/``.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy

from benchmarks.options import make_parser, write_page
from lightning_perf.compare.study.definition import balanced_orders
from lightning_perf.statistics.collapse import clopper_pearson
from lightning_perf.statistics.exact import hodges_lehmann_shift, sign_flip_test, two_sample_test, walsh_interval
from lightning_perf.statistics.location import Kept, non_inferiority, paired_difference, paired_ratio, unpaired_ratio
from lightning_perf.statistics.spread import measure_drift, sd_ratio
from lightning_perf.statistics.values import Estimate, Float64Array

RESULTS = Path(__file__).parents[1] / "results" / "run_statistics.md"
SPREAD = 0.02
DRIFT = 0.05
TRUE_RATIO = 0.94
SIZES = (3, 4, 5, 6, 8, 10, 15, 20)
PERMUTED_SIZES = (3, 4, 5, 6, 8, 10)


@dataclass(frozen=True)
class Scenario:
    """A way in which run times vary; the module's docstring describes them."""

    name: str
    outliers: bool = False
    drift: bool = False
    blocked: bool = True

    def draw(self, rng: np.random.Generator, studies: int, n: int, ratio: float) -> tuple[Float64Array, Float64Array]:
        """Draw the times of the baseline and the candidate, each of shape [studies, n]."""
        logs = rng.normal(0, SPREAD, (studies, n, 2))
        if self.outliers:
            slow = rng.random((studies, n, 2)) < 0.1
            logs += slow * np.log1p(rng.uniform(0.05, 0.25, (studies, n, 2)))
        if self.drift:
            position = np.empty((studies, n, 2))
            for row in range(studies):
                if self.blocked:
                    orders = balanced_orders(("a", "b"), n, int(rng.integers(2**31)))
                    second = np.array([order[0] == "b" for order in orders], dtype=np.float64)
                    position[row, :, 0] = 2 * np.arange(n) + second
                    position[row, :, 1] = 2 * np.arange(n) + 1 - second
                else:
                    position[row] = np.arange(2 * n).reshape(2, n).T
            logs += np.log1p(DRIFT) * position / (2 * n - 1)
        if self.blocked:
            logs += rng.normal(0, SPREAD, (studies, n, 1))
        return np.exp(logs[:, :, 0]), np.exp(logs[:, :, 1] + np.log(ratio))


BLOCKED = (Scenario("normal"), Scenario("outliers", outliers=True), Scenario("drift", drift=True))
UNBLOCKED = (
    Scenario("normal", blocked=False),
    Scenario("outliers", outliers=True, blocked=False),
    Scenario("drift, AAA BBB", drift=True, blocked=False),
)


def covers(estimate: Estimate, truth: float) -> bool | None:
    """Return whether the interval contains the truth; None without an interval."""
    if estimate.low is None or estimate.high is None:
        return None
    return estimate.low <= truth <= estimate.high


def share(outcomes: list[bool | None]) -> str:
    """Format the share of true outcomes in per cent; a dash if most studies have no outcome."""
    known = [outcome for outcome in outcomes if outcome is not None]
    return f"{100 * sum(known) / len(known):.1f}" if len(known) > len(outcomes) / 2 else "–"


Measure = Callable[[Float64Array, Float64Array], bool | None]


def table(
    title: str, scenarios: tuple[Scenario, ...], measure: Measure, sizes: tuple[int, ...], studies: int, ratio: float
) -> list[str]:
    """Return a Markdown table with one row per scenario and one column per number of runs."""
    lines = ["", f"**{title}**", "", "| n | " + " | ".join(map(str, sizes)) + " |", "|---" * (len(sizes) + 1) + "|"]
    for scenario in scenarios:
        cells = []
        for n in sizes:
            base, candidate = scenario.draw(np.random.default_rng([n, 7]), studies, n, ratio)
            cells.append(share([measure(b, c) for b, c in zip(base, candidate, strict=True)]))
        lines.append(f"| {scenario.name} | " + " | ".join(cells) + " |")
    return lines


def below(p: float | None, level: float = 0.05) -> bool:
    """Return whether a p-value rejects; a missing one does not."""
    return p is not None and p < level


def fit(values: Float64Array, other: Float64Array) -> bool:
    """Return whether the test claims a drift for runs in alternating order."""
    merged = np.column_stack([values, other]).ravel()
    blocks = np.repeat(np.arange(len(values)), 2).tolist()
    return below(measure_drift(merged.tolist(), ["a", "b"] * len(values), blocks).p)


def margin_kept_at_the_margin(base: Float64Array, candidate: Float64Array) -> bool:
    """Return whether a loss of exactly the margin passes as kept."""
    return non_inferiority(paired_difference(np.log(base), np.log(candidate)), 0.01).kept is Kept.KEPT


def report(studies: int) -> str:
    """Return all tables as Markdown."""
    log_truth = float(np.log(TRUE_RATIO))
    few = max(200, studies // 4)
    lines = ["## Blocked runs: the ratio of times", ""]
    lines += [
        "In per cent: the coverage of intervals with nominal coverage 95, and the false positives of tests at level 5."
    ]
    lines += table(
        f"Paired t interval of the ratio (true ratio {TRUE_RATIO}): coverage, nominal 95",
        BLOCKED, lambda b, c: covers(paired_ratio(b, c), TRUE_RATIO), SIZES, studies, TRUE_RATIO,
    )  # fmt: skip
    lines += table(
        "The same, no true difference: claims of faster or slower, nominal 5",
        BLOCKED, lambda b, c: not covers(paired_ratio(b, c), 1.0), SIZES, studies, 1.0,
    )  # fmt: skip
    lines += table(
        "Exact sign-flip permutation: false positives, at most 5",
        BLOCKED, lambda b, c: below(sign_flip_test(np.log(c / b)).p), PERMUTED_SIZES, studies, 1.0,
    )  # fmt: skip
    lines += table(
        "Walsh averages with the signed-rank interval: coverage, at least 95",
        BLOCKED, lambda b, c: covers(walsh_interval(np.log(c / b)), log_truth), SIZES, few, TRUE_RATIO,
    )  # fmt: skip
    lines += table(
        "Non-inferiority, true loss equal to the margin: wrongly kept, nominal 5",
        BLOCKED, margin_kept_at_the_margin, SIZES, studies, float(np.exp(-0.01)),
    )  # fmt: skip
    lines += table(
        "SD ratio, Pitman–Morgan (assumes normal runs): coverage, nominal 95 for normal runs only",
        BLOCKED, lambda b, c: covers(sd_ratio(np.log(b), np.log(c), paired=True), 1.0), SIZES, few, 1.0,
    )  # fmt: skip
    lines += table("Drift claimed without a drift: nominal 5", BLOCKED[:2], fit, SIZES, few, 1.0)
    lines += ["", "## Runs that were not blocked", ""]
    lines += table(
        f"Welch on logarithms (true ratio {TRUE_RATIO}): coverage, nominal 95",
        UNBLOCKED, lambda b, c: covers(unpaired_ratio(b, c), TRUE_RATIO), SIZES, studies, TRUE_RATIO,
    )  # fmt: skip
    lines += table(
        "Exact two-sample permutation: false positives, at most 5",
        UNBLOCKED, lambda b, c: below(two_sample_test(np.log(b), np.log(c)).p), (3, 4, 5, 6), few, 1.0,
    )  # fmt: skip
    lines += table(
        "Hodges–Lehmann with the rank-sum interval: coverage, at least 95",
        UNBLOCKED, lambda b, c: covers(hodges_lehmann_shift(np.log(b), np.log(c)), log_truth), SIZES, few, TRUE_RATIO,
    )  # fmt: skip
    lines += [
        "",
        "## Collapsed runs",
        "",
        "**Clopper–Pearson: least coverage over true shares 0.01 … 0.5, at least 95**",
    ]
    lines += ["", "| n | " + " | ".join(map(str, SIZES)) + " |", "|---" * (len(SIZES) + 1) + "|"]
    lines += ["| exact | " + " | ".join(f"{100 * _least_coverage(n):.1f}" for n in SIZES) + " |"]
    return "\n".join(lines) + "\n"


def _least_coverage(n: int) -> float:
    """Compute the coverage exactly, from the probability of every count with an interval that contains the truth."""
    intervals = [clopper_pearson(k, n) for k in range(n + 1)]
    shares = np.linspace(0.01, 0.5, 50)
    return float(
        min(
            sum(scipy.special.binom(n, k) * p**k * (1 - p) ** (n - k) for k, i in enumerate(intervals) if covers(i, p))
            for p in shares
        )
    )


def write_simulation(description: str | None, results: Path, head: str, report: Callable[[int], str]) -> None:
    """Read the options of a simulation, run it, and print and write its page.

    Args:
        head: The title of the page, and the command.
        report: Returns the tables as Markdown, from the number of simulated studies per cell.
    """
    parser = make_parser(description, results)
    parser.add_argument("--studies", type=int, default=4000, help="simulated studies per cell (default: %(default)s)")
    options = parser.parse_args()
    begin_s = time.process_time()
    tables = report(options.studies)
    error = 100 * (0.95 * 0.05 / options.studies) ** 0.5
    write_page(
        options.results,
        f"{head} {options.studies:,} simulated studies per cell (standard error {error:.2f} points at 95 %), seeded. "
        f"Python {platform.python_version()}, numpy {np.__version__}, scipy {scipy.__version__}; "
        f"{time.process_time() - begin_s:.0f} s of CPU time.\n\n{tables}",
    )


def main() -> None:
    """Run the simulation, and print and write the tables."""
    head = (
        "# Statistics of repeated runs: coverage and false positives\n\nWritten by `python -m "
        "benchmarks.comparing.run_statistics`. The slower tests use a quarter of the studies."
    )
    write_simulation(__doc__, RESULTS, head, report)


if __name__ == "__main__":
    main()
