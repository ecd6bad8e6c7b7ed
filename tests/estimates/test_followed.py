"""Estimates that a later run checks, on recordings of a processor with known times."""

import os
from pathlib import Path
from typing import Any

import pytest

from lightning_perf import analyze
from lightning_perf.cli import main
from lightning_perf.estimates.followed import ADVICE, ReportedRun, check_pair, find_followed, find_previous, run_folder
from lightning_perf.findings.whole_run import RULE_IDS
from lightning_perf.run_files.estimates import ESTIMATES_NAME, find_outcomes
from lightning_perf.run_files.report import write_report
from lightning_perf.run_files.run_record import RUN_RECORD, RunStarted
from tests.findings.host_recordings import convolving, on_processor
from tests.support.schemas import load_document

FACTS: dict[str, Any] = {
    "model.class": "Net",
    "model.parameters": 1234,
    "train.precision": "32-true",
    "version.torch": "2.15.0",
}


def record(
    folder: Path,
    facts: dict[str, Any] | None = None,
    *,
    threads: int = 1,
    layer: Any = (16, 16),
    use: dict[str, float] | None = None,
    **recording: Any,
) -> Path:
    """A run's folder with a trace, a report and, if there are facts, a record."""
    folder.mkdir(parents=True)
    origin = 1_000_000.0 * (len(str(folder)) % 7)
    builder = convolving(on_processor(threads=threads, use=use), origin_us=origin, **recording)
    builder.op("aten::linear", origin + 5, 10, dims=[[8, 16], list(layer)])
    builder.write(folder / f"rank0.{abs(hash(folder.as_posix()))}.pt.trace.json")
    if facts is not None:
        RUN_RECORD.append(folder / "run.jsonl", RunStarted(folder.as_posix(), 0.0, {**FACTS, **facts}))
    write_report(folder, analyze(folder))
    return folder


def run(folder: Path) -> ReportedRun:
    report = analyze(folder)
    return ReportedRun.of(report, run_folder(folder, report))


FASTER: dict[str, Any] = {"convolution_us": (1500, 2500)}
"""Convolutions that take half of their 8 ms: a step of 6 ms instead of 10."""


@pytest.mark.parametrize("facts", [True, False])
def test_a_diff_checks_the_estimate_that_was_followed(tmp_path: Path, facts: bool) -> None:
    before = record(tmp_path / "a", {"device.threads": 1} if facts else None)
    after = record(tmp_path / "bb", {"device.threads": 2} if facts else None, threads=2, **FASTER)
    (outcome,) = check_pair(run(before), run(after), "diff")
    (finding,) = (one for one in analyze(before).findings if one.kind == "cpu-threads")
    assert (outcome.rule, outcome.setting) == ("cpu-threads", "device.threads 1 → 2")
    assert (outcome.low_ms, outcome.high_ms) == (finding.saving_low_ms, finding.saving_high_ms)
    assert (outcome.step_ms, outcome.gain_ms) == (pytest.approx(10.0), pytest.approx(4.0, abs=0.05))
    assert (outcome.gain_low_ms, outcome.gain_high_ms) == (None, None), "one run of each has no interval"
    assert (outcome.source, outcome.machine) == ("general", "A CPU")
    if facts:
        assert (outcome.network, outcome.versions) == ("Net, 1,234 parameters", {"torch": "2.15.0"})


@pytest.mark.parametrize(
    ("facts", "recording"),
    [
        ({"train.accumulate": 2}, {}),  # a second change
        ({}, {"use": {"core_wait": 0.4}}),  # a busy machine
        ({}, {"layer": [64, 64]}),  # another model
    ],
)
def test_other_runs_check_nothing(tmp_path: Path, facts: dict[str, Any], recording: dict[str, Any]) -> None:
    before = record(tmp_path / "a", {"device.threads": 1})
    after = record(tmp_path / "bb", {"device.threads": 2, **facts}, threads=2, **FASTER, **recording)
    assert check_pair(run(before), run(after), "diff") == ()
    assert check_pair(run(before), run(before), "diff") == (), "a run is no outcome of itself"


def test_the_command_stores_and_shows_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = record(tmp_path / "a", {"device.threads": 1})
    after = record(tmp_path / "bb", {"device.threads": 2}, threads=2, **FASTER)
    for _ in range(2):
        assert main(["diff", str(before), str(after)]) == 0
        assert "Estimate checked: `cpu-threads` predicted" in " ".join(capsys.readouterr().out.split())
    assert [outcome.rule for outcome in find_outcomes(tmp_path)] == ["cpu-threads"]
    assert (after / ESTIMATES_NAME).exists()
    assert main(["explain", "--estimates", str(tmp_path), "--json"]) == 0
    document = load_document("explain", capsys.readouterr().out)
    assert document["estimates"][0]["verdict"] in ("inside", "cannot be told")
    assert document["totals"][0]["without_interval"] == 1
    (after / ESTIMATES_NAME).unlink()
    (after / ESTIMATES_NAME).mkdir()  # it cannot be written, which is no fault of the comparison
    assert main(["diff", str(before), str(after)]) == 0


def test_traces_without_a_run_get_no_file(tmp_path: Path) -> None:
    before, after = record(tmp_path / "a"), record(tmp_path / "bb", threads=2, **FASTER)
    for folder in (before, after):
        (folder / "report.json").unlink()
    traces = [next(folder.glob("*.json")) for folder in (before, after)]
    for pair in ((before, after), traces):
        assert main(["diff", *map(str, pair)]) == 0
    assert not list(tmp_path.rglob(ESTIMATES_NAME))


@pytest.mark.parametrize("folders", [("v/0/perf", "v/1/perf", "v/2/perf"), ("perf", "perf_1", "perf_2")])
def test_earlier_runs_of_a_log_folder_newest_first(tmp_path: Path, folders: tuple[str, ...]) -> None:
    for number, name in enumerate((*folders, "elsewhere/deep/x")):
        folder = record(tmp_path / name, {})
        os.utime(folder / "report.json", (1000 + number, 1000 + number))
    (tmp_path / folders[0] / "report.json").write_text("{}", encoding="utf-8")  # damaged: skipped
    found = [previous.name for previous in find_previous(tmp_path / folders[2])]
    assert found == [(tmp_path / folders[1]).as_posix()]


RUN: dict[str, Any] = {
    "train.seed": 1,
    "train.precision": "32-true",
    "train.batch_size": 32,
    "train.optimizer": "AdamW(betas=(0.9, 0.999), foreach=None, fused=None, lr=0.001)",
    "train.accumulate": 1,
    "model.class": "Net",
    "model.compiled": False,
    "data.num_workers": 0,
    "data.pin_memory": False,
    "data.val_num_workers": 0,
    "device.threads": 1,
    "flags.tf32_matmul": "ieee",
    "flags.tf32_cudnn": "tf32",
    "flags.cudnn_benchmark": False,
    "code.revision": "a",
}


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"train.precision": "bf16-mixed"}, "cpu-bf16"),
        ({"train.precision": "16-mixed", "train.seed": 2, "code.revision": "b"}, "half-precision"),
        ({"flags.tf32_matmul": "tf32"}, "tf32-off"),
        ({"model.channels_last": True}, "cpu-channels-last"),
        ({"train.optimizer": "AdamW(betas=(0.9, 0.999), foreach=False, fused=True, lr=0.001)"}, "unfused-optimizer"),
        ({"device.threads": 2, "env.OMP_NUM_THREADS": "2"}, "cpu-threads"),
        ({"data.num_workers": 4, "data.persistent_workers": True, "data.val_num_workers": 4}, "input-bound"),
        ({"data.pin_memory": True}, "pageable-copies"),
        ({"model.compiled": True}, "launch-bound"),
        ({"flags.cudnn_benchmark": True}, "cudnn-benchmark"),
        ({"env.MALLOC_TRIM_THRESHOLD_": "17179869184", "env.MALLOC_MMAP_MAX_": "0"}, "cpu-page-faults"),
        ({"train.batch_size": 64}, "cpu-overhead"),
    ],
)
def test_a_change_follows_its_advice(changed: dict[str, Any], rule: str) -> None:
    followed = find_followed(RUN, RUN | changed)
    assert followed is not None
    assert rule in followed.advice.rules
    assert followed.time_factor == (0.5 if "train.batch_size" in changed else 1)
    assert find_followed(RUN | changed, RUN) is None, "the way back follows no advice"


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"train.seed": 2},
        {"train.precision": "64-true"},
        {"train.precision": "bf16-mixed", "device.threads": 2},
        {"train.precision": "bf16-mixed", "train.accumulate": 2},
        {"train.precision": "bf16-mixed", "host.name": "another"},
        {"train.optimizer": "AdamW(betas=(0.9, 0.999), foreach=None, fused=True, lr=0.002)"},
        {"train.optimizer": "SGD(foreach=None, fused=True, lr=0.001)"},
        {"device.threads": "unknown"},
    ],
)
def test_no_change_or_several_follow_none(changed: dict[str, Any]) -> None:
    assert find_followed(RUN, RUN | changed) is None


def test_every_rule_of_the_table_exists() -> None:
    known = RULE_IDS
    assert {rule for advice in ADVICE for rule in advice.rules} <= known
