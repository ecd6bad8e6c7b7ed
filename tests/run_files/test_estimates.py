"""The store of measured estimates: append-only, tolerant of damage, without repeats."""

import json
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from lightning_perf.errors import TraceError
from lightning_perf.run_files.estimates import ESTIMATES_NAME, EstimateOutcome, add_outcomes, find_outcomes

OUTCOME = EstimateOutcome(
    rule="cpu-bf16",
    setting="train.precision 32-true → bf16-mixed",
    step_ms=100.0,
    low_ms=20.0,
    high_ms=30.0,
    source="probed",
    gain_ms=25.0,
    gain_low_ms=22.0,
    gain_high_ms=28.0,
    method="tune",
    measurement="tuning 1",
    measured_unix_s=1.0,
)


def test_a_round_trip_of_every_field(tmp_path: Path) -> None:
    full = replace(
        OUTCOME,
        on_top_of=("channels-last",),
        network="Net, 12 parameters",
        fingerprint="abc",
        machine="A CPU",
        versions={"torch": "2.15.0"},
        gain_low_ms=None,
        gain_high_ms=None,
    )
    assert add_outcomes(tmp_path, [full]) == tmp_path / ESTIMATES_NAME
    assert find_outcomes(tmp_path) == (full,)
    (line,) = (tmp_path / ESTIMATES_NAME).read_text(encoding="utf-8").split("\n")[1:-1]
    assert json.loads(line) == json.loads(json.dumps(asdict(full))), "a line is plain JSON with all fields"


def test_a_file_is_appended_to_and_a_measurement_counts_once(tmp_path: Path) -> None:
    add_outcomes(tmp_path, [OUTCOME])
    before = (tmp_path / ESTIMATES_NAME).read_bytes()
    other = replace(OUTCOME, rule="cpu-threads")
    assert add_outcomes(tmp_path, [replace(OUTCOME, gain_ms=1.0)]) is None, "the same measurement again"
    add_outcomes(tmp_path, [OUTCOME, other])
    assert (tmp_path / ESTIMATES_NAME).read_bytes().startswith(before)
    assert find_outcomes(tmp_path) == (OUTCOME, other)


def test_the_last_of_repeats_in_several_folders_counts(tmp_path: Path) -> None:
    later = replace(OUTCOME, gain_ms=24.0, measured_unix_s=2.0)
    for name, outcome in (("a", later), ("b", OUTCOME), ("c/d", replace(OUTCOME, measurement="tuning 2"))):
        (tmp_path / name).mkdir(parents=True)
        add_outcomes(tmp_path / name, [outcome])
    assert sorted(one.gain_ms for one in find_outcomes(tmp_path)) == [24.0, 25.0]


def test_damage_costs_its_own_line_only(tmp_path: Path) -> None:
    path = tmp_path / ESTIMATES_NAME
    add_outcomes(tmp_path, [OUTCOME])
    with path.open("ab") as file:
        file.write(b'\n{"rule":"cpu-bf16","setti')  # the process was killed here
    other = replace(OUTCOME, rule="cpu-threads")
    add_outcomes(tmp_path, [other])
    with path.open("ab") as file:
        file.write(b"\n\xff\xfe\n")
    assert find_outcomes(tmp_path) == (OUTCOME, other)
    assert find_outcomes(path) == (OUTCOME, other), "a file by itself"
    with path.open("ab") as file:
        file.write(b'{"rule": 3}\n')  # no process that died left a whole value of another type
    with pytest.raises(TraceError, match=r"estimates\.jsonl: line 8 is no measured estimate"):
        find_outcomes(tmp_path)


def test_figures_that_json_lacks_are_left_out(tmp_path: Path) -> None:
    for bad in (float("nan"), float("inf")):
        assert add_outcomes(tmp_path, [replace(OUTCOME, gain_ms=bad), replace(OUTCOME, gain_low_ms=bad)]) is None
    assert not (tmp_path / ESTIMATES_NAME).exists()
