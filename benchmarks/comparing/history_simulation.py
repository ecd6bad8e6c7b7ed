"""How often `lightning-perf history` finds a change, and how often it reports one that does not exist.

A simulated history has 40 rows, one per commit. In four of five histories the metric changes for good at one row, which
is drawn from rows 9 to 33. The kinds of noise:

- quiet: normal, SD 0.5 %, as step times on an idle GPU;
- shared machine: normal, SD 2 %;
- autocorrelated: SD 2 %, and neighboring rows have a correlation of 0.5, like a machine with good and bad days;
- heavy tails: a t distribution with 3 degrees of freedom, scaled by 1 %;
- outliers: SD 1 %, and one row in twelve is 10 % slower;
- outlier rows: SD 1 %, and one row in twelve is 50 % slower;
- drift: SD 1 %, and the rows become 10 % slower from the first to the last, as in a room that gets warmer;
- season: SD 1 %, and a sine of 30 rows with an amplitude of 3 %;
- bursts: SD 1 %, and 3 to 6 rows in a row, once in 40 rows, are 10 % slower.

A change counts as found if a change point is within three rows of it. Any other change point is a false alarm.

Run as ``python -m benchmarks.comparing.history_simulation``: prints Markdown tables and writes them to
``benchmarks/results/history.md``. With ``--methods`` it prints the table of ``benchmarks/results/history_methods.md``
instead: the methods of other libraries, of those that are installed (``pip install ruptures apache-otava``).
With ``--example FOLDER`` it writes the simulated history that the docs show.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightning_perf.history.store import StoredRun, open_store
from lightning_perf.statistics.change_points import find_changes, predict
from lightning_perf.statistics.values import Float64Array

RESULTS = Path(__file__).parents[1] / "results" / "history.md"
ROWS = 40
FIRST, LAST = 8, 32
NEAR = 3
SHIFTS = (0.0, 0.03, 0.05, 0.1, 0.2)
KINDS = ("quiet", "shared machine", "autocorrelated", "heavy tails", "outliers")
"""Noise around one level."""

OTHERS = ("outlier rows", "drift", "season", "bursts")
"""Causes other than a change of the code that do not look like noise around one level."""

LENGTHS = (40, 100, 200)
PER_CELL = 200
"""Histories of each kind and shift."""

GATE_LIMIT = 1.05
GATE_TEXT = (
    "A new row is judged by a history of 20 rows without a change, 1,000 times per cell. *Interval right*: the 95 % "
    "prediction interval contains the true ratio."
)
GATE_RATIOS = (1.0, 1.03, 1.05, 1.07, 1.1)

Finder = Callable[[Float64Array], list[int]]


@dataclass(frozen=True)
class Planted:
    """A simulated history.

    Attributes:
        values: Logarithms of the rows.
        at: The first row after the change, or None.
        size: Logarithm of the ratio of the levels.
    """

    values: Float64Array
    at: int | None
    size: float


@dataclass
class Count:
    """Counts over the histories of a cell."""

    histories: int = 0
    found: int = 0
    exact: int = 0
    distance: int = 0
    in_place: int = 0
    in_size: int = 0
    alarms: int = 0
    with_alarm: int = 0


def draw_noise(kind: str, rng: np.random.Generator, rows: int = ROWS) -> Float64Array:
    """Draw the noise of the rows of a history, as logarithms."""
    match kind:
        case "quiet":
            return rng.normal(0, 0.005, rows)
        case "shared machine":
            return rng.normal(0, 0.02, rows)
        case "autocorrelated":
            steps, values = rng.normal(0, 1, rows), np.empty(rows)
            values[0] = steps[0]
            for row in range(1, rows):
                values[row] = 0.5 * values[row - 1] + math.sqrt(0.75) * steps[row]
            return 0.02 * values
        case "heavy tails":
            return 0.01 * rng.standard_t(3, rows)
        case "outliers":
            return rng.normal(0, 0.01, rows) + math.log(1.1) * (rng.random(rows) < 1 / 12)
    quiet, places = rng.normal(0, 0.01, rows), np.arange(rows)
    match kind:
        case "outlier rows":
            return quiet + math.log(1.5) * (rng.random(rows) < 1 / 12)
        case "drift":
            return quiet + math.log(1.1) * places / (rows - 1)
        case "season":
            return quiet + 0.03 * np.sin(2 * np.pi * (places / 30 + rng.random()))
        case "bursts":
            for _ in range(rows // 40):
                start = int(rng.integers(0, rows - 6))
                quiet[start : start + int(rng.integers(3, 7))] += math.log(1.1)
            return quiet
    raise ValueError(f"unknown kind of noise {kind!r}; choose from {', '.join(KINDS + OTHERS)}")


def draw_histories(kind: str, shift: float, count: int) -> Iterator[Planted]:
    """Draw histories with a fixed seed for each kind and shift."""
    rng = np.random.default_rng([(KINDS + OTHERS).index(kind), round(1000 * shift), ROWS])
    for _ in range(count):
        values, at = draw_noise(kind, rng), int(rng.integers(FIRST, LAST + 1))
        if not shift:
            yield Planted(values, None, 0.0)
            continue
        size = math.log1p(shift) * (1 if rng.random() < 0.5 else -1)
        yield Planted(values + size * (np.arange(ROWS) >= at), at, size)


def count_cell(kind: str, shift: float, count: int) -> Count:
    """Find the changes in histories of one kind and shift, and count hits, misses and false alarms."""
    result = Count()
    for history in draw_histories(kind, shift, count):
        changes = find_changes(history.values).changes
        _add(result, history, [change.position for change in changes])
        nearest = _nearest(history, [change.position for change in changes])
        if nearest is not None and history.at is not None:
            change = changes[nearest]
            result.in_place += change.low <= history.at <= change.high
            low, high = change.change.low, change.change.high
            result.in_size += low is not None and high is not None and low <= history.size <= high
    return result


def _add(result: Count, history: Planted, positions: list[int]) -> None:
    nearest = _nearest(history, positions)
    result.histories += 1
    alarms = len(positions) - (nearest is not None)
    result.alarms += alarms
    result.with_alarm += alarms > 0
    if nearest is not None and history.at is not None:
        distance = abs(positions[nearest] - history.at)
        result.found += 1
        result.exact += distance == 0
        result.distance += distance


def _nearest(history: Planted, positions: list[int]) -> int | None:
    if history.at is None:
        return None
    at = history.at
    near = [number for number, position in enumerate(positions) if abs(position - at) <= NEAR]
    return min(near, key=lambda number: abs(positions[number] - at), default=None)


def table(per_cell: int) -> str:
    """Return the table of all cells with this number of histories each."""
    heads = (
        "noise", "change", "histories", "found", "at the exact row", "mean distance (rows)", "place interval right",
        "size interval right", "false alarms per history", "histories with one",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", f"|---{'|---:' * (len(heads) - 1)}|"]
    total = Count()
    for kind in KINDS + OTHERS:
        for shift in SHIFTS:
            cell = count_cell(kind, shift, per_cell)
            lines.append(_line(kind, f"{shift:.0%}".replace("%", " %") if shift else "none", cell))
            for name in vars(total):
                setattr(total, name, getattr(total, name) + getattr(cell, name))
    planted = total.histories * (len(SHIFTS) - 1) // len(SHIFTS)
    lines.append("")
    lines.append(
        f"In all: {total.found} of {planted} planted changes found, {total.alarms} false alarms in "
        f"{total.histories} histories, {total.with_alarm} histories with at least one. Of the found changes, the place "
        f"interval has {total.in_place / total.found:.1%}, the size interval {total.in_size / total.found:.1%}."
    )
    return "\n".join(lines)


def _line(kind: str, shift: str, cell: Count) -> str:
    if shift == "none":
        hits = ["–"] * 5
    elif not cell.found:
        hits = ["0 %", *["–"] * 4]
    else:
        hits = [
            f"{cell.found / cell.histories:.0%}",
            f"{cell.exact / cell.found:.0%}",
            f"{cell.distance / cell.found:.2f}",
            f"{cell.in_place / cell.found:.0%}",
            f"{cell.in_size / cell.found:.0%}",
        ]
    cells = [kind, shift, str(cell.histories), *hits, f"{cell.alarms / cell.histories:.2f}", str(cell.with_alarm)]
    return "| " + " | ".join(text.replace("%", " %").replace("  ", " ") for text in cells) + " |"


def alarm_table(count: int) -> str:
    """Return the share of histories without a change in which a change is reported, by kind of noise and length.

    Changes with fewer than seven rows on one side may still be a burst. The second figure is without them.
    """
    heads = " | ".join(f"{rows} rows" for rows in LENGTHS)
    lines = [f"| noise | {heads} |", f"|---{'|---:' * len(LENGTHS)}|"]
    for kind in KINDS + OTHERS:
        cells = []
        for rows in LENGTHS:
            rng = np.random.default_rng([(KINDS + OTHERS).index(kind), rows, 2])
            found = [
                [change.position for change in find_changes(draw_noise(kind, rng, rows)).changes] for _ in range(count)
            ]
            settled = sum(any(7 <= place <= rows - 7 for place in places) for places in found)
            cells.append(f"{sum(map(bool, found)) / count:.0%} ({settled / count:.0%})".replace("%", " %"))
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def gate_table(count: int) -> str:
    """Return how a gate of at most 5 % decides on a new row after a history of 20 rows without a change."""
    lines = [
        "| noise | true ratio | passed | failed | inconclusive | interval right |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for kind in KINDS:
        for ratio in GATE_RATIOS:
            rng = np.random.default_rng([KINDS.index(kind), round(1000 * ratio), 1])
            passed = failed = right = 0
            for _ in range(count):
                values = draw_noise(kind, rng, 21)
                series = find_changes(values[:-1])
                new = float(values[-1]) + math.log(ratio)
                estimate = predict(series, len(series.starts) - 1, new, 1.0)
                if estimate.low is None or estimate.high is None:
                    continue
                passed += math.exp(estimate.high) <= GATE_LIMIT
                failed += math.exp(estimate.low) > GATE_LIMIT
                right += estimate.low <= math.log(ratio) <= estimate.high
            shares = (passed, failed, count - passed - failed, right)
            lines.append(f"| {kind} | {ratio:.2f} | " + " | ".join(f"{n / count:.1%}" for n in shares) + " |")
    return "\n".join(line.replace("%", " %") for line in lines)


def other_methods() -> dict[str, Finder]:
    """Return the methods of other libraries, of those that are installed, and of changeforest."""
    import changeforest

    def knn(values: Float64Array) -> list[int]:
        control = changeforest.Control(minimal_relative_segment_length=2.99 / len(values))
        return list(changeforest.changeforest(values[:, None], "knn", "sbs", control).split_points())

    methods: dict[str, Finder] = {
        "this project": lambda values: [change.position for change in find_changes(values).changes],
        "changeforest 1.2, nearest neighbors, its defaults": knn,
    }
    try:
        import ruptures
    except ImportError:
        pass
    else:

        def pelt(values: Float64Array) -> list[int]:
            scale = 1.4826 * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)
            fitted = ruptures.Pelt(model="l2", min_size=3, jump=1).fit((values / scale)[:, None])
            return list(fitted.predict(pen=3 * math.log(len(values))))[:-1]

        methods["ruptures 1.1, PELT, penalty 3 log n"] = pelt
    try:
        analysis: Any = importlib.import_module("otava.analysis")
    except ImportError:
        return methods

    def hunter(values: Float64Array) -> list[int]:
        return [point.index for point in analysis.compute_change_points(list(np.exp(values)))[0]]

    def divisive(values: Float64Array) -> list[int]:
        points = analysis.compute_change_points_orig(list(values), max_pvalue=0.01, seed=1)[0]
        return [point.index for point in points]

    return methods | {
        "apache-otava 0.8, Hunter, its defaults": hunter,
        "apache-otava 0.8, E-divisive, p < 0.01": divisive,
    }


def method_table(per_cell: int) -> str:
    """Return found changes and false alarms of each method, over all kinds of noise."""
    heads = [f"{shift:.0%} found" for shift in SHIFTS[1:]]
    alarms = [f"false alarms, {kind}" for kind in KINDS]
    lines = [
        "| method | " + " | ".join(heads + alarms) + " | ms per history |",
        "|---" * (len(heads + alarms) + 2) + "|",
    ]
    for name, find in other_methods().items():
        begun = time.process_time()
        cells = {(kind, shift): Count() for kind in KINDS for shift in SHIFTS}
        for (kind, shift), cell in cells.items():
            for history in draw_histories(kind, shift, per_cell):
                _add(cell, history, find(history.values))
        spent_ms = 1000 * (time.process_time() - begun) / (per_cell * len(cells))
        found = [sum(cells[kind, shift].found for kind in KINDS) / per_cell / len(KINDS) for shift in SHIFTS[1:]]
        false = [sum(cells[kind, shift].alarms for shift in SHIFTS) / per_cell / len(SHIFTS) for kind in KINDS]
        figures = [f"{share:.0%}" for share in found] + [f"{mean:.2f}" for mean in false]
        lines.append(f"| {name} | " + " | ".join(figures) + f" | {spent_ms:.1f} |")
    return "\n".join(line.replace("%", " %") for line in lines)


def write_example(folder: Path) -> None:
    """Write a history of 32 commits with three runs each. The step time rises by 10 % at the 23rd commit."""
    shutil.rmtree(folder, ignore_errors=True)
    rng, day_s, first_s = np.random.default_rng(7), 86_400.0, 1_788_220_800.0
    runs = []
    for number in range(1, 33):
        level = math.log(100 * (1.1 if number >= 23 else 1.0)) + float(rng.normal(0, 0.01))
        for seed, noise in enumerate(rng.normal(0, 0.003, 3)):
            started_s = first_s + day_s * number + 600 * seed
            runs.append(
                StoredRun(
                    run_id=f"{number}-{seed}",
                    started_unix_s=started_s,
                    added_unix_s=started_s,
                    commit=f"{number:02d}5eed{number:06x}",
                    facts={"host.name": "simulated-host", "device.name": "simulated device", "train.seed": seed},
                    values={"step_time": math.exp(level + noise)},
                )
            )
    open_store(folder).append(runs)


def main() -> None:
    """Simulate, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", action="store_true", help="compare other libraries, and print only that table")
    parser.add_argument("--example", type=Path, metavar="FOLDER", help="write the history that the docs show")
    options = parser.parse_args()
    if options.example is not None:
        write_example(options.example)
        return
    if options.methods:
        print(method_table(20))
        return
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "scipy", "changeforest"))
    begun = time.process_time()
    parts = [
        "# Change points and gates of simulated histories",
        (
            "Written by `python -m benchmarks.comparing.history_simulation`, which describes the kinds of noise. "
            "Seeds are fixed."
        ),
        f"## {PER_CELL * len(KINDS + OTHERS) * len(SHIFTS):,} histories",
        table(PER_CELL),
        "## Histories without a change",
        (
            f"Share of {PER_CELL} histories per cell with a false alarm. In parentheses: with one that has seven "
            "rows or more on both sides, so that it cannot be a short burst."
        ),
        alarm_table(PER_CELL),
        f"## A gate of at most {GATE_LIMIT - 1:.0%}".replace("%", " %"),
        GATE_TEXT,
        gate_table(1000),
    ]
    spent_s = time.process_time() - begun
    parts.append(f"Python {platform.python_version()}, {versions}; {spent_s:.0f} s of CPU time.")
    text = "\n\n".join(parts) + "\n"
    sys.stdout.write(text)
    RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
