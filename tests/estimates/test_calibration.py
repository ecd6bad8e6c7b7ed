"""The table of measured estimates against counts by hand."""

import io
import math
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.cli import main
from lightning_perf.estimates.calibration import Calibration, EstimatesError, calibrate
from lightning_perf.run_files.estimates import EstimateOutcome, add_outcomes


def outcome(number: int, low: float, high: float, gain: float, reach: float | None = 1.0, **fields: Any) -> Any:
    given: dict[str, Any] = {"rule": "cpu-bf16", "source": "general", "setting": "bf16-mixed", **fields}
    return EstimateOutcome(
        step_ms=100.0,
        low_ms=low,
        high_ms=high,
        gain_ms=gain,
        gain_low_ms=None if reach is None else gain - reach,
        gain_high_ms=None if reach is None else gain + reach,
        method="tune",
        measurement=str(number),
        measured_unix_s=number,
        **given,
    )


OUTCOMES = [
    outcome(1, 10, 20, 15),  # inside
    outcome(2, 10, 20, 10, 8),  # inside, at the end
    outcome(3, 10, 30, 35),  # above
    outcome(4, 10, 40, 5),  # below
    outcome(5, 0, 20, 21, 2),  # the interval overlaps the range; no lower end above 0
    outcome(6, 10, 20, 15, None),  # inside, without an interval
    outcome(7, 10, 20, 50, None),  # outside, without an interval
    outcome(8, 10, 20, 15, on_top_of=("channels-last",)),
    outcome(9, 10, 12, 11, rule="cpu-threads", source="probed"),
]


def binomial_ends(count: int, n: int) -> tuple[float, float]:
    """Clopper and Pearson's interval by bisection of the binomial sums, without scipy."""

    def at_least(p: float) -> float:
        return sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(count, n + 1))

    def at_most(p: float) -> float:
        return sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(count + 1))

    def root(rises: Any) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if rises(middle) else (low, middle)
        return low

    return root(lambda p: at_least(p) < 0.025), root(lambda p: at_most(p) > 0.025)


def test_counts_widths_and_coverage() -> None:
    calibration = calibrate([*OUTCOMES, OUTCOMES[0]])
    verdicts = [estimate.verdict for estimate in calibration.estimates]
    told = "cannot be told"
    assert verdicts == ["inside", "inside", "above", "below", told, "inside", told, told, "inside"]
    bf16, threads = calibration.rules
    assert (bf16.rule, bf16.source, threads.rule, threads.source) == ("cpu-bf16", "general", "cpu-threads", "probed")
    counts = (bf16.count, bf16.inside, bf16.above, bf16.below, bf16.undecided, bf16.without_interval)
    assert counts == (8, 3, 1, 1, 3, 2)
    assert bf16.median_width == 2.0, "of 2, 2, 3, 4, none, 2, 2, 2"
    assert (bf16.coverage.value, bf16.coverage.n) == (0.5, 4), "two of the four decided ones with an interval"
    assert (bf16.coverage.low, bf16.coverage.high) == pytest.approx(binomial_ends(2, 4))
    assert [(total.rule, total.source, total.count) for total in calibration.totals] == [
        (None, "general", 8),
        (None, "probed", 1),
    ]


def test_a_median_of_ranges_without_lower_end_is_no_number() -> None:
    (summary,) = calibrate([outcome(1, 0, 20, 5), outcome(2, -5, 20, 5), outcome(3, 10, 20, 15)]).rules
    assert summary.median_width is None


def test_the_document_comes_back_and_fits_a_terminal() -> None:
    calibration = calibrate(OUTCOMES, ["runs"])
    assert Calibration.from_json(calibration.to_json()) == calibration
    with pytest.raises(EstimatesError, match="table"):
        Calibration.from_json("{}")
    file = io.StringIO()
    calibration.print(file=file, width=100)
    text = file.getvalue()
    assert max(map(len, text.splitlines())) <= 100
    flat = " ".join(text.split())
    assert "8 general estimates were measured: 2 of 4 gains with an interval and a clear verdict were inside" in flat
    assert "1 probed estimate was measured: 1 of 1 gains" in flat
    assert "2 gains come from one run of each side and have no interval" in flat
    markdown = calibration.to_markdown()
    assert "| cpu-bf16 | general | 8 | 3 | 1 | 1 | 3 | 2.00 | 50.0 % (" in markdown.replace("\\", "")
    assert "on top of channels-last" in markdown


def test_the_command_writes_markdown_and_reads_several_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, one in enumerate(OUTCOMES):
        folder = tmp_path / "runs" / str(number % 2) / "deep"
        folder.mkdir(parents=True, exist_ok=True)
        add_outcomes(folder, [one])
    page = tmp_path / "table.md"
    folders = [str(tmp_path / "runs" / name) for name in "01"]
    assert main(["explain", "--estimates", ",".join(folders), "--markdown", str(page)]) == 0
    assert "cpu-threads" in capsys.readouterr().out
    assert "all rules" in page.read_text(encoding="utf-8")


def test_nothing_to_show_is_an_error_that_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "--estimates", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "no measured estimate (estimates.jsonl)" in error
    assert "lightning-perf tune --out FOLDER" in error
    assert main(["explain", "--estimates", "absent"]) == 2
    assert "absent: no such folder" in capsys.readouterr().err
