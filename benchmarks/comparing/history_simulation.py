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
``benchmarks/results/history.md``. With ``--example FOLDER`` it writes the simulated history that the docs show.
"""

from __future__ import annotations

import importlib.metadata
import math
import platform
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.options import make_parser, markdown_table, write_page
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
        at, changes = history.at, find_changes(history.values).changes
        near = [] if at is None else [change for change in changes if abs(change.position - at) <= NEAR]
        result.histories += 1
        alarms = len(changes) - bool(near)
        result.alarms += alarms
        result.with_alarm += alarms > 0
        if at is not None and near:
            change = min(near, key=lambda change: abs(change.position - at))
            result.found += 1
            result.exact += change.position == at
            result.distance += abs(change.position - at)
            result.in_place += change.low <= at <= change.high
            low, high = change.change.low, change.change.high
            result.in_size += low is not None and high is not None and low <= history.size <= high
    return result


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def table(per_cell: int) -> str:
    """Return the table of all cells with this number of histories each."""
    heads = (
        "noise", "change", "histories", "found", "at the exact row", "mean distance (rows)", "place interval right",
        "size interval right", "false alarms per history", "histories with one",
    )  # fmt: skip
    rows, total = [], Count()
    for kind in KINDS + OTHERS:
        for shift in SHIFTS:
            cell = count_cell(kind, shift, per_cell)
            rows.append((kind, _percent(shift) if shift else "none", *_cells(cell, planted=bool(shift))))
            for name in vars(total):
                setattr(total, name, getattr(total, name) + getattr(cell, name))
    planted = total.histories * (len(SHIFTS) - 1) // len(SHIFTS)
    return markdown_table(heads, rows, len(heads) - 1) + (
        f"\n\nIn all: {total.found} of {planted} planted changes found, {total.alarms} false alarms in "
        f"{total.histories} histories, {total.with_alarm} histories with at least one. Of the found changes, the place "
        f"interval has {_percent(total.in_place / total.found, 1)}, the size interval "
        f"{_percent(total.in_size / total.found, 1)}."
    )


def _cells(cell: Count, *, planted: bool) -> tuple[object, ...]:
    hits = ["0 %" if planted else "–", *["–"] * 4]
    if planted and cell.found:
        shares = [_percent(share / cell.found) for share in (cell.exact, cell.in_place, cell.in_size)]
        hits = [_percent(cell.found / cell.histories), shares[0], f"{cell.distance / cell.found:.2f}", *shares[1:]]
    return cell.histories, *hits, f"{cell.alarms / cell.histories:.2f}", cell.with_alarm


def alarm_table(count: int) -> str:
    """Return the share of histories without a change in which a change is reported, by kind of noise and length.

    Changes with fewer than seven rows on one side may still be a burst. The second figure is without them.
    """
    table_rows = []
    for kind in KINDS + OTHERS:
        cells = []
        for rows in LENGTHS:
            rng = np.random.default_rng([(KINDS + OTHERS).index(kind), rows, 2])
            found = [
                [change.position for change in find_changes(draw_noise(kind, rng, rows)).changes] for _ in range(count)
            ]
            settled = sum(any(7 <= place <= rows - 7 for place in places) for places in found)
            cells.append(f"{_percent(sum(map(bool, found)) / count)} ({_percent(settled / count)})")
        table_rows.append((kind, *cells))
    return markdown_table(("noise", *(f"{rows} rows" for rows in LENGTHS)), table_rows, len(LENGTHS))


def gate_table(count: int) -> str:
    """Return how a gate of at most 5 % decides on a new row after a history of 20 rows without a change."""
    rows = []
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
            rows.append((kind, f"{ratio:.2f}", *(_percent(n / count, 1) for n in shares)))
    return markdown_table(("noise", "true ratio", "passed", "failed", "inconclusive", "interval right"), rows, 5)


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
    parser = make_parser(__doc__, RESULTS)
    parser.add_argument("--example", type=Path, metavar="FOLDER", help="write the history that the docs show")
    options = parser.parse_args()
    if options.example is not None:
        write_example(options.example)
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
    write_page(options.results, "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
