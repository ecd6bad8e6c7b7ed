import msgspec
import pytest

from lightning_perf.analysis.precision.amp_gain import AmpGain
from lightning_perf.compare.records.record import read_record
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.gates import Settings
from lightning_perf.report.document import SCHEMA_VERSION
from lightning_perf.run_files.run_record import Place
from tests.compare.support import BASE_MS, write_arms, write_run
from tests.support.shown import console_text


def leave_prediction(run, speedup, steps_ms=100.0):
    """A report beside a run that predicts this speed-up at the most, and one of 1.25 at the least."""
    gain = AmpGain("H200", 5, 1e6 * steps_ms, (), 0.0, 0.2e6 * steps_ms, 1e6 * steps_ms * (1 - 1 / speedup))
    report = {"schema_version": SCHEMA_VERSION, "lead": 0, "ranks": [{"amp_gain": gain, "more": [1]}], "notes": []}
    run.path.with_name("report.json").write_bytes(msgspec.json.encode(report))
    return read_record(run.path)


@pytest.mark.parametrize(("candidate_ms", "held"), [(50.0, True), (90.0, False), (30.0, False)])
def test_a_prediction_of_the_baseline_stands_beside_what_mixed_precision_brought(tmp_path, candidate_ms, held):
    made = write_arms(tmp_path, candidate=tuple(candidate_ms / 100 * ms for ms in BASE_MS), train__precision="16-mixed")
    warm_up = write_run(tmp_path / "warm-up", started=0.5, place=Place("s", "fp32", 0, 0, treatment=("precision",)))
    made["fp32"] = [leave_prediction(warm_up, 2.5), *made["fp32"]]
    comparison = compare_arms(made)
    prediction = comparison.candidates[0].prediction
    assert (prediction.run_id, prediction.held) == ("warm-up", held)
    assert (prediction.low, prediction.high) == pytest.approx((1.25, 2.5))
    assert prediction.measured.value == pytest.approx(100 / candidate_ms)
    lines = console_text(comparison.blocks()).splitlines()
    (line,) = [line for line in lines if line.startswith("The profiled run warm-up predicted")]
    assert ("within" if held else "outside") in line


def test_a_prediction_is_only_for_mixed_precision(tmp_path):
    made = write_arms(tmp_path, flags__tf32_cudnn="ieee", train__precision="32-true")
    made["fp32"][0] = leave_prediction(made["fp32"][0], 2.5)
    assert compare_arms(made, Settings(treatment=("flags",))).candidates[0].prediction is None


@pytest.mark.parametrize("report", [b"", b"{}", b'{"schema_version": 99, "lead": 0, "ranks": []}', b"[1]"])
def test_a_report_that_cannot_be_read_predicts_nothing(tmp_path, report):
    run = write_arms(tmp_path)["fp32"][0]
    run.path.with_name("report.json").write_bytes(report)
    assert read_record(run.path).predicted_speedup is None
