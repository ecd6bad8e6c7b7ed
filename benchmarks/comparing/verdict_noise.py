"""How often `compare` is right when noise is not normal: coverage, false verdicts and power for eleven kinds of noise.

A simulated study has blocks with one run of a baseline and one of a candidate, 100 steps each. The true difference is
known. The kinds of noise, with a common level for each block (SD 2 %, except for drift):

- normal: run means with SD 2 %, steps with SD 2 %;
- lognormal: run means with SD 2 %, skewed steps (log SD 0.3);
- outlier runs: run means with SD 0.5 %, and one run in ten is 5 % slower;
- drift: run means with SD 2 %, and all times grow by 5 % over the study;
- autocorrelated steps: run means with SD 1 %, steps with SD 6 % that depend on the step before (0.97);
- bimodal: run means with SD 0.5 %, and three runs in ten are 4 % slower, like a process with unlucky memory;
- heavy tails: run means and steps follow a t distribution with 2 degrees of freedom;
- process effect: run means with SD 4 %, steps with SD 0.5 %;
- busy machine: in a third of the runs other processes slow down bursts of steps by 20 to 100 %;
- skewed arms: run means with SD 1 %, and each run is slower by an exponential share with mean 4 %;
- skewed candidate: the same for the candidate only, with an equal mean of both arms.

Run as ``python -m benchmarks.comparing.verdict_noise``: prints Markdown tables and writes them to
``benchmarks/results/verdict_noise.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from benchmarks.comparing.run_statistics import write_simulation
from benchmarks.options import markdown_table
from lightning_perf.compare.verdicts.pair import MOST_SKEW, RANK_BLOCKS
from lightning_perf.statistics.exact import signed_rank_counts
from lightning_perf.statistics.values import Float64Array, t_quantile

RESULTS = Path(__file__).parents[1] / "results" / "verdict_noise.md"
STEPS = 100
SIZES = (6, 8, 10, 12, 16, 20)
BATCH = 500
EQUIVALENCE = 0.01
Rng = np.random.Generator

Interval = tuple[Float64Array, Float64Array]
Summary = Callable[[Float64Array], Float64Array]


def draw_noise(kind: str, rng: Rng, studies: int, blocks: int) -> Float64Array:
    """Draw the logarithms of step times, without a true difference.

    Args:
        kind: One of `KINDS`.
        rng: Source of randomness.
        studies: Number of studies.
        blocks: Blocks per study.

    Returns:
        Shape [studies, blocks, 2, STEPS].
    """
    runs, steps = (studies, blocks, 2, 1), (studies, blocks, 2, STEPS)
    level: Float64Array = rng.normal(0, 0.02, (studies, blocks, 1, 1))
    noise: Float64Array
    match kind:
        case "normal":
            noise = level + rng.normal(0, 0.02, runs) + rng.normal(0, 0.02, steps)
        case "lognormal":
            noise = level + rng.normal(0, 0.02, runs) + rng.normal(0, 0.3, steps)
        case "outlier runs":
            slow = np.log1p(0.05) * (rng.random(runs) < 0.1)
            noise = level + slow + rng.normal(0, 0.005, runs) + rng.normal(0, 0.02, steps)
        case "drift":
            position = 2.0 * np.arange(blocks)[:, None] + _balanced_places(rng, studies, blocks)
            growth = np.log1p(0.05) * position / (2 * blocks - 1)
            noise = growth[..., None] + rng.normal(0, 0.02, runs) + rng.normal(0, 0.02, steps)
        case "autocorrelated steps":
            noise = level + rng.normal(0, 0.01, runs) + 0.06 * _autocorrelated(rng, steps, 0.97)
        case "bimodal":
            slow = np.log1p(0.04) * (rng.random(runs) < 0.3)
            noise = level + slow + rng.normal(0, 0.005, runs) + rng.normal(0, 0.01, steps)
        case "heavy tails":
            noise = level + 0.01 * rng.standard_t(2, runs) + 0.03 * rng.standard_t(2, steps)
        case "process effect":
            noise = level + rng.normal(0, 0.04, runs) + rng.normal(0, 0.005, steps)
        case "busy machine":
            share = (rng.random(runs) < 1 / 3) * rng.beta(1, 2, runs)
            busy = ndtr(_autocorrelated(rng, steps, 0.9)) < share
            slower = busy * np.log(rng.uniform(1.2, 2.0, runs))
            noise = level + slower + rng.normal(0, 0.01, runs) + rng.normal(0, 0.02, steps)
        case "skewed arms" | "skewed candidate":
            slower = np.log1p(rng.exponential(0.04, runs) - 0.04)
            if kind == "skewed candidate":
                slower[:, :, 0] = 0
            noise = level + slower + rng.normal(0, 0.01, runs) + rng.normal(0, 0.02, steps)
        case _:
            raise ValueError(f"unknown kind of noise {kind!r}; choose from {', '.join(KINDS)}")
    return noise


KINDS = (
    "normal",
    "lognormal",
    "outlier runs",
    "drift",
    "autocorrelated steps",
    "bimodal",
    "heavy tails",
    "process effect",
    "busy machine",
    "skewed arms",
    "skewed candidate",
)

SUMMARIES: Mapping[str, Summary] = {
    "mean": lambda times: times.mean(axis=-1),
    "median": lambda times: np.median(times, axis=-1),
    "25th percentile": lambda times: np.quantile(times, 0.25, axis=-1),
    "minimum": lambda times: times.min(axis=-1),
}


def _balanced_places(rng: Rng, studies: int, blocks: int) -> NDArray[np.int64]:
    """Return each run's place in its block, 0 or 1, both arms equally often first; shape [studies, blocks, 2]."""
    first = rng.permuted(np.tile(np.arange(blocks) % 2, (studies, 1)), axis=1)
    return np.stack([first, 1 - first], axis=-1)


def _autocorrelated(rng: Rng, shape: tuple[int, ...], correlation: float) -> Float64Array:
    values = rng.normal(0, 1, shape)
    for step in range(1, shape[-1]):
        values[..., step] = correlation * values[..., step - 1] + (1 - correlation**2) ** 0.5 * values[..., step]
    return values


def t_interval(gaps: Float64Array) -> Interval:
    """Return Student's 95 % interval of each study, from the blocks' log ratios of shape [studies, blocks]."""
    blocks = gaps.shape[1]
    reach = t_quantile(0.975, blocks - 1) * gaps.std(axis=1, ddof=1) / blocks**0.5
    return gaps.mean(axis=1) - reach, gaps.mean(axis=1) + reach


def rank_interval(gaps: Float64Array, level: float = 0.05) -> Interval:
    """Return the signed-rank interval of each study, which covers at least 1 - `level`."""
    blocks = gaps.shape[1]
    row, column = np.triu_indices(blocks)
    averages = (gaps[:, row] + gaps[:, column]) / 2
    counts = signed_rank_counts(blocks)
    outside = int(np.searchsorted(2 * np.cumsum(counts) / counts.sum(), level, side="right"))
    averages.partition((outside - 1, averages.shape[1] - outside), axis=1)
    return averages[:, outside - 1], averages[:, -outside]


def mean_interval(runs: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return the logarithm of the ratio of mean times and its interval, as `mean_ratio` computes them."""
    times = np.exp(runs - runs.mean(axis=(1, 2), keepdims=True))
    blocks = runs.shape[1]
    means = times.mean(axis=1, keepdims=True)
    rest = np.subtract(*np.moveaxis(times / means, -1, 0)[::-1])
    apart = rest - np.median(rest, axis=1, keepdims=True)
    sd = rest.std(axis=1, ddof=1)
    sides = [(2 * (np.clip(sign * apart, 0, None) ** 2).sum(axis=1) / (blocks - 1)) ** 0.5 for sign in (-1, 1)]
    below, above = (t_quantile(0.975, blocks - 1) * np.maximum(side, sd) / blocks**0.5 for side in sides)
    value = np.log(means[:, 0, 1] / means[:, 0, 0])
    return value, value - below, value + above


def chosen_interval(runs: Float64Array) -> Interval:
    """Return the interval that `compare` uses, from the logarithms of the run means of shape [studies, blocks, 2]."""
    gaps = runs[..., 1] - runs[..., 0]
    if runs.shape[1] < RANK_BLOCKS:
        return t_interval(gaps)
    low, high = rank_interval(gaps)
    rest = gaps - gaps.mean(axis=1, keepdims=True)
    skew = (rest**3).mean(axis=1) / (rest**2).mean(axis=1) ** 1.5
    mean, mean_low, mean_high = mean_interval(runs)
    extended = (np.abs(skew) > MOST_SKEW) | (mean < low) | (mean > high)
    return np.where(extended, np.minimum(low, mean_low), low), np.where(extended, np.maximum(high, mean_high), high)


def draw_runs(kind: str, studies: int, blocks: int, summaries: Mapping[str, Summary]) -> dict[str, Float64Array]:
    """Return the logarithms of every run's summary; shape [studies, blocks, 2]."""
    rng = np.random.default_rng([KINDS.index(kind), blocks])
    parts: dict[str, list[Float64Array]] = {name: [] for name in summaries}
    for begin in range(0, studies, BATCH):
        times = np.exp(draw_noise(kind, rng, min(BATCH, studies - begin), blocks))
        for name, summary in summaries.items():
            parts[name].append(np.log(summary(times)))
    return {name: np.concatenate(drawn) for name, drawn in parts.items()}


def draw_gaps(kind: str, studies: int, blocks: int, summaries: Mapping[str, Summary]) -> dict[str, Float64Array]:
    """Return the log ratios candidate / baseline of every block, by summary of the runs; shape [studies, blocks]."""
    drawn = draw_runs(kind, studies, blocks, summaries)
    return {name: runs[..., 1] - runs[..., 0] for name, runs in drawn.items()}


def coverage(interval: Interval) -> float:
    """Return the share of studies with the true difference, zero, inside the interval."""
    return float(np.mean((interval[0] <= 0) & (interval[1] >= 0)))


def verdicts(interval: Interval, effect: float) -> tuple[float, float]:
    """Return the shares of the verdicts *faster* and *slower* if the true log ratio is `effect`."""
    low, high = interval[0] + effect, interval[1] + effect
    zone = np.log1p(EQUIVALENCE)
    equivalent = (low >= -zone) & (high <= zone)
    return float(np.mean((high < 0) & ~equivalent)), float(np.mean((low > 0) & ~equivalent))


def robust_sd(gaps: Float64Array) -> float:
    """Return the spread of the gaps without their tails: the interquartile range as a standard deviation."""
    low, high = np.quantile(gaps, [0.25, 0.75])
    return float((high - low) / 1.349)


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return ["", markdown_table(heads, rows), ""]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def by_noise(studies: int) -> list[str]:
    """Show how often the interval of `compare` is right."""
    lines = ["## By noise", ""]
    lines.append(
        f"In per cent. From {RANK_BLOCKS} blocks on the interval is that of the signed ranks. If the log ratios are "
        "skewed, or contradict the ratio of the means, it also covers the interval of that ratio. With fewer blocks it "
        "is Student's t interval of the log ratios of mean step times. *Coverage*: the interval contains the true "
        "ratio, nominal 95. *False verdicts*: *faster* or *slower* without a difference of the means, nominal at most "
        "5. *Power*: *faster* for a true reduction by one robust SD of the blocks' ratios."
    )
    for blocks in SIZES:
        rows = []
        for kind in KINDS:
            runs = draw_runs(kind, studies, blocks, {"mean": SUMMARIES["mean"]})["mean"]
            interval, effect = chosen_interval(runs), robust_sd(runs[..., 1] - runs[..., 0])
            power = _called_faster(chosen_interval(runs - np.array([0.0, effect])))
            shares = coverage(interval), sum(verdicts(interval, 0.0)), power
            rows.append((kind, f"{100 * effect:.1f}", *map(_percent, shares)))
        lines += ["", f"**{blocks} blocks**"]
        lines += _table(("noise", "robust SD (%)", "coverage", "false verdicts", "power"), rows)
    return lines


def _called_faster(interval: Interval) -> float:
    return verdicts(interval, 0.0)[0]


def rare_slow_runs(studies: int) -> list[str]:
    """Count the verdicts on a candidate with a few far slower runs, although the others are 2 % faster."""
    lines = ["## Rare slow runs", ""]
    lines.append(
        "All runs of the candidate take 2 % less, but some are far slower, so that its mean is higher. Run means with "
        "SD 1 %. Each cell: per cent of the studies in which at least one slow run occurred. A study without one "
        "cannot know about them (last column). The verdict *faster* therefore names the share of slow runs that its "
        "blocks cannot exclude."
    )
    rows = []
    for share, factor in ((0.1, 3.0), (0.1, 1.5), (0.1, 1.3), (0.2, 1.15), (0.05, 3.0)):
        for blocks in (6, 12, 20, 30):
            rng = np.random.default_rng([round(1000 * share), round(100 * factor), blocks])
            runs = rng.normal(0, 0.02, (studies, blocks, 1)) + rng.normal(0, 0.01, (studies, blocks, 2))
            slow = rng.random((studies, blocks)) < share
            runs[..., 1] += np.log(0.98) + np.log(factor) * slow
            seen = runs[slow.any(axis=1)]
            interval = chosen_interval(seen)
            passes = float(np.mean(interval[1] <= np.log(1.05)))
            mean = 0.98 * (1 + share * (factor - 1)) - 1
            title = f"{100 * share:.0f} % of the runs at {factor:g} times (mean +{100 * mean:.1f} %)"
            shares = _called_faster(interval), passes, 1 - len(seen) / studies
            rows.append((title, str(blocks), *map(_percent, shares)))
    heads = ("candidate", "blocks", "*faster*", "`step_time<=1.05` passes", "without a slow run")
    return lines + _table(heads, rows)


def healthy_studies(studies: int) -> list[str]:
    """Count the verdicts *faster* of common studies with normal noise."""
    lines = ["## Common studies", ""]
    lines.append(
        "Run means are normal with this SD, on a level that both runs of a block share. Each cell: the verdict "
        "*faster* in per cent, for a step time that is really lower by 3 % and by 6 %."
    )
    rows = []
    for sd in (0.005, 0.01, 0.02):
        for blocks in (5, 6, 8, 12, 20):
            rng = np.random.default_rng([round(1000 * sd), blocks])
            noise = rng.normal(0, 0.02, (studies, blocks, 1)) + rng.normal(0, sd, (studies, blocks, 2))
            changed = (noise + np.array([0.0, np.log1p(-change)]) for change in (0.03, 0.06))
            shares = (_percent(_called_faster(chosen_interval(runs))) for runs in changed)
            rows.append((f"{100 * sd:g} %", str(blocks), *shares))
    return lines + _table(("SD of runs", "blocks", "3 % less", "6 % less"), rows)


def choice_of_blocks(studies: int) -> list[str]:
    """Compare the power of both intervals by number of blocks."""
    lines = ["## From how many blocks", "", "Power as above, in per cent: Student's t / signed rank."]
    rows: list[list[str]] = [[kind] for kind in (*KINDS, "mean of all kinds")]
    for blocks in SIZES:
        totals = np.zeros(2)
        for number, kind in enumerate(KINDS):
            gaps = draw_gaps(kind, studies, blocks, {"mean": SUMMARIES["mean"]})["mean"]
            effect = robust_sd(gaps)
            powers = [verdicts(interval(gaps), -effect)[0] for interval in (t_interval, rank_interval)]
            totals += powers
            rows[number].append(" / ".join(f"{100 * power:.0f}" for power in powers))
        rows[-1].append(" / ".join(f"{100 * total / len(KINDS):.0f}" for total in totals))
    heads = ("noise", *(f"{blocks} blocks" for blocks in SIZES))
    return lines + _table(heads, [tuple(row) for row in rows])


def choice_of_summary(studies: int) -> list[str]:
    """Compare summaries of a run: the width of intervals, and the costs that a summary does not see."""
    lines = ["## Which summary of a run", ""]
    lines.append(
        "Half the width of the 95 % interval between two equal arms, in per cent (median over studies; 12 blocks, "
        "signed rank). A narrower interval detects smaller differences."
    )
    rows = []
    for kind in KINDS:
        gaps = draw_gaps(kind, studies, 12, SUMMARIES)
        widths = [np.median(np.subtract(*rank_interval(gaps[name])[::-1])) / 2 for name in SUMMARIES]
        rows.append((kind, *(f"±{100 * float(width):.2f}" for width in widths)))
    lines += _table(("noise", *SUMMARIES), rows)
    lines.append(
        "A summary must also see every cost. In these three cases the candidate's training is really slower or faster. "
        "Each cell: verdicts *faster* / *slower* in per cent (12 blocks, normal noise)."
    )
    rows = []
    for title, change in HIDDEN.items():
        rng = np.random.default_rng(5)
        times = np.exp(draw_noise("normal", rng, studies // 4, 12))
        times[:, :, 1] = change(rng, times[:, :, 1])
        cells = []
        for summary in SUMMARIES.values():
            logs = np.log(summary(times))
            shares = verdicts(rank_interval(logs[..., 1] - logs[..., 0]), 0.0)
            cells.append(" / ".join(f"{100 * share:.0f}" for share in shares))
        rows.append((title, *cells))
    lines += _table(("candidate", *SUMMARIES), rows)
    lines.append(
        "Lower quantiles are blind to stalls, and on the host's clock to the work of a GPU. The mean therefore "
        "decides. For runs on a processor the report adds the 25th percentile to an inconclusive verdict."
    )
    return lines


def _stalls(rng: Rng, times: Float64Array) -> Float64Array:
    return times * np.where(rng.random(times.shape) < 0.1, 3.0, 0.97)


def _faster(_: Rng, times: Float64Array) -> Float64Array:
    return times * 0.9


def _run_ahead(_: Rng, times: Float64Array) -> Float64Array:
    """Let the host queue 49 steps at a tenth of their time, then wait for the device, which takes 20 % longer."""
    ahead = 0.1 * times
    waits = np.arange(times.shape[-1]) % 50 == 49
    rest = 1.2 * times - ahead
    return ahead + np.where(waits, 50 * rest.mean(axis=-1, keepdims=True), 0.0)


HIDDEN: Mapping[str, Callable[[Rng, Float64Array], Float64Array]] = {
    "10 % of steps stall at 3 times, the others take 3 % less (mean +17 %)": _stalls,
    "timed on the host, which queues 50 steps, while the GPU takes 20 % longer (mean +20 %)": _run_ahead,
    "every step takes 10 % less (mean −10 %)": _faster,
}


def report(studies: int) -> str:
    """Return all tables as Markdown."""
    parts = (by_noise, rare_slow_runs, healthy_studies, choice_of_blocks, choice_of_summary)
    return "\n".join(line for part in parts for line in part(studies)) + "\n"


def main() -> None:
    """Run the simulation, and print and write the tables."""
    head = (
        "# Verdicts under eleven kinds of noise\n\n"
        "Written by `python -m benchmarks.comparing.verdict_noise`, which describes the kinds of noise."
    )
    write_simulation(__doc__, RESULTS, head, report)


if __name__ == "__main__":
    main()
