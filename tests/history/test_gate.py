import numpy as np
import pytest
from scipy import stats

from lightning_perf.cli import main
from lightning_perf.compare.verdicts.comparison import UnfairError
from lightning_perf.compare.verdicts.gates import GateOutcome, parse_gate
from lightning_perf.errors import CompareError, ExitCode, InvalidRunsError
from lightning_perf.history import HistoryError, HistoryGate, gate_runs, read_history, set_baseline
from lightning_perf.history.gate import slowdown_gate
from lightning_perf.run_files.run_record import Outcome
from tests.compare.support import write_run
from tests.history.support import GPU, commit_name, write_commit, write_history
from tests.support.schemas import load_document


@pytest.fixture
def new(tmp_path):
    """Make the runs of a new commit with a step time."""

    def make(step_ms, **changes):
        write_commit(tmp_path / "new", 99, step_ms, **changes)
        return tmp_path / "new"

    return make


@pytest.mark.parametrize(
    ("step_ms", "outcome", "code"),
    [
        (110.0, GateOutcome.PASSED, ExitCode.SUCCESS),
        (121.0, GateOutcome.FAILED, ExitCode.CHECK_FAILED),
        (115.5, GateOutcome.INCONCLUSIVE, ExitCode.INCONCLUSIVE),
    ],
)
def test_a_planted_slowdown(store, new, step_ms, outcome, code, capsys):
    folder = new(step_ms)
    gate = gate_runs(store, [folder], [slowdown_gate("step_time", 0.05)])
    assert gate.outcome is outcome
    assert gate.commit == commit_name(99)
    assert main(["history", "gate", str(folder), "--store", str(store), "--max-slowdown", "0.05"]) == code
    printed = capsys.readouterr().out
    assert printed.startswith(f"{outcome.value.capitalize()}: {commit_name(99)} against the history.")
    assert ("Next" in printed) is (outcome is GateOutcome.INCONCLUSIVE)
    assert HistoryGate.from_json(gate.to_json()) == gate


def test_the_interval_is_a_prediction_interval(store, new):
    gate = gate_runs(store, [new(110.0)], [parse_gate("step_time<=1.05")])
    (figure,) = gate.metrics
    (series,) = read_history(store).series
    logs = np.log([row.value for row in series.rows])
    before, after = logs[:11], logs[11:]
    rest = np.concatenate([before - before.mean(), after - after.mean()])
    factor = (1 + series.autocorrelation) / (1 - series.autocorrelation)
    scale = np.sqrt((rest**2).sum() / 18 * (factor / 9 + 1))
    low, high = stats.t.interval(0.95, 18 / factor, loc=np.log(figure.value) - after.mean(), scale=scale)
    assert (figure.estimate.low, figure.estimate.high) == pytest.approx((np.exp(low), np.exp(high)))
    assert (figure.rows, figure.first, figure.last) == (9, commit_name(12), commit_name(20))


def test_fewer_runs_have_a_wider_interval(store, tmp_path):
    widths = []
    for runs in (2, 1):
        write_commit(tmp_path / str(runs), 99, 110.0, runs=runs)
        (figure,) = gate_runs(store, [tmp_path / str(runs)], [parse_gate("step_time<=1.05")]).metrics
        widths.append(np.log(figure.estimate.high / figure.estimate.low))
    assert widths[1] > 1.3 * widths[0]


def test_a_baseline_keeps_the_old_level(store, new):
    set_baseline(store, "v1", commit_name(5))
    folder = new(110.0)
    gates = [slowdown_gate("step_time", 0.05)]
    against_v1 = gate_runs(store, [folder], gates, baseline="v1")
    assert against_v1.outcome is GateOutcome.FAILED
    assert against_v1.notes == (f"The history has 1 change point since the baseline v1 ({commit_name(5)}).",)
    assert gate_runs(store, [folder], gates, baseline=commit_name(5)[:7]).outcome is GateOutcome.FAILED
    assert gate_runs(store, [folder], gates, baseline=commit_name(20)).outcome is GateOutcome.PASSED
    with pytest.raises(
        HistoryError, match=r'--baseline "v2": neither a baseline nor a commit of this series. Baselines'
    ):
        gate_runs(store, [folder], gates, baseline="v2")


def test_runs_that_are_in_the_history_are_not_compared_with_themselves(store, new):
    folder = new(140.0)
    before = gate_runs(store, [folder], [slowdown_gate("step_time", 0.05)])
    assert main(["history", "add", str(folder), "--store", str(store), "-q"]) == 0
    after = gate_runs(store, [folder], [slowdown_gate("step_time", 0.05)])
    assert before.metrics == after.metrics


def test_another_machine_is_refused(store, new, capsys):
    folder = new(110.0, host__name="other-box")
    with pytest.raises(UnfairError, match=r"host\.name"):
        gate_runs(store, [folder], [slowdown_gate("step_time", 0.05)])
    arguments = ["history", "gate", str(folder), "--store", str(store), "--max-slowdown", "0.05"]
    assert main([*arguments, "--json"]) == ExitCode.UNFAIR
    captured = capsys.readouterr()
    assert load_document("history", captured.out)["state"] == "unfair"
    assert "gpu-box" in captured.err
    advice = " ".join(captured.err.split())
    assert "If host.name does not matter, name it with --allow. Otherwise add runs of earlier commits" in advice
    assert "--treatment" not in advice
    assert main([*arguments, "--allow", "host", "-q"]) == ExitCode.SUCCESS


def test_throughput_and_equal_memory(store, new):
    folder = new(121.0)
    assert slowdown_gate("throughput", 0.05).text == "throughput>=0.952381"
    gates = [slowdown_gate("throughput", 0.05), parse_gate("device_memory<=1.0"), parse_gate("loss<=1.1")]
    results = gate_runs(store, [folder], gates[:2]).gates
    assert [result.outcome for result in results] == [GateOutcome.FAILED, GateOutcome.PASSED]
    with pytest.raises(HistoryError, match="no run in it has the metric loss"):
        gate_runs(store, [folder], gates)


def test_a_metric_that_the_new_runs_lack(store, tmp_path):
    write_run(tmp_path / "new" / "a", accuracies=(), code__revision=commit_name(99), train__seed=0, **GPU)
    (result,) = gate_runs(store, [tmp_path / "new"], [parse_gate("accuracy>=-0.01")]).gates
    assert (result.outcome, result.reason) == (GateOutcome.INCONCLUSIVE, "the runs have no accuracy")


def test_runs_that_cannot_be_judged(store, tmp_path, capsys):
    gates = [slowdown_gate("step_time", 0.05)]
    write_run(tmp_path / "failed" / "a", outcome=Outcome.FAILED)
    with pytest.raises(InvalidRunsError, match=r"no valid run to judge \(1 failed\)"):
        gate_runs(store, [tmp_path / "failed"], gates)
    write_commit(tmp_path / "two", 98, 100.0)
    write_commit(tmp_path / "two", 99, 100.0)
    with pytest.raises(CompareError, match="of several commits: abcd62000098, abcd63000099"):
        gate_runs(store, [tmp_path / "two"], gates)
    write_commit(tmp_path / "mixed", 99, 100.0)
    write_commit(tmp_path / "mixed", 99, 100.0, seed=1, train__batch_size=64)
    with pytest.raises(CompareError, match=r"differ among themselves in train\.batch_size"):
        gate_runs(store, [tmp_path / "mixed"], gates)
    arguments = ["history", "gate", str(tmp_path / "failed"), "--store", str(store), "--max-slowdown", "1", "--json"]
    assert main(arguments) == ExitCode.INVALID_RUNS
    assert load_document("history", capsys.readouterr().out)["state"] == "invalid"


def test_a_history_of_one_row_is_inconclusive(tmp_path, new):
    write_history(tmp_path, rows=1)
    (result,) = gate_runs(tmp_path / "store", [new(100.0)], [slowdown_gate("step_time", 0.05)]).gates
    assert (result.outcome, result.low) == (GateOutcome.INCONCLUSIVE, None)
    assert "too few rows" in str(result.reason)


def test_slowdowns_are_of_times():
    with pytest.raises(HistoryError, match='"device_memory" is not a time or a throughput'):
        slowdown_gate("device_memory", 0.05)
    with pytest.raises(HistoryError, match=r'Write a gate instead: --gate "accuracy>=-0.01"'):
        slowdown_gate("accuracy", 0.05)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["shwo"], 'unknown verb "shwo". Did you mean show?'),
        (["show", "x"], 'unexpected argument "x". Name the history with --store.'),
        (["add"], "add needs at least one RUN"),
        (["gate", "x"], "gate needs a limit. Add --max-slowdown 0.05"),
        (["gate", "x", "--metric", "step_time"], "--metric of gate needs --max-slowdown"),
        (["gate", "x", "--since", "2026-01-01"], "--since is not an option of gate, only of: show."),
        (["baseline", "main"], "write: baseline set NAME [COMMIT]"),
        (["--max-slowdown", "0.1"], "--max-slowdown is not an option of show, only of: gate."),
    ],
)
def test_wrong_usage(arguments, problem, capsys):
    assert main(["history", *arguments]) == ExitCode.USAGE
    assert problem in capsys.readouterr().err


def test_every_output(store, tmp_path, capsys):
    files = {name: tmp_path / f"out/trend.{name}" for name in ("md", "html", "png")}
    options = ["--markdown", str(files["md"]), "--plot", str(files["png"])]
    files["html"].parent.mkdir()
    assert main(["history", "--store", str(store), "--html", str(files["html"]), *options]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("History of the step time: 1 change for the worse, not confirmed, in 20 rows.")
    assert "│" in printed
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    assert "| abcd0c000012 |" in files["md"].read_text()
    assert 'data-kind="history"' in files["html"].read_text()
    assert main(["history", "--store", str(store), "--json"]) == 0
    assert load_document("history", capsys.readouterr().out)["series"][0]["changes"][0]["row"] == 11
    assert main(["history", "baseline", "set", "main", commit_name(3), "--store", str(store)]) == 0
    assert f"baseline main is now {commit_name(3)}" in capsys.readouterr().err
    assert main(["history", "--store", str(store)]) == 0
    assert "[main]" in capsys.readouterr().out


def test_markdown(store, new):
    gate = gate_runs(store, [new(121.0)], [slowdown_gate("step_time", 0.05)])
    text = gate.to_markdown()
    assert "**Failed: abcd63000099 against the history.**" in text
    assert "on gpu-box, H100" in text
