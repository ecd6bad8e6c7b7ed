import math
import os
import shutil
import subprocess

import msgspec
import numpy as np
import pytest

from lightning_perf.cli import main
from lightning_perf.errors import CompareError
from lightning_perf.history import History, HistoryError, add_runs, read_history, set_baseline
from lightning_perf.history.store import StoredBaseline, StoredRun, open_store
from lightning_perf.run_files.run_record import Outcome, Place
from tests.compare.support import write_run
from tests.history.support import DAY_S, GPU, commit_name, write_commit


def test_a_row_per_commit_and_the_change(store, tmp_path):
    history = read_history(store, repository=tmp_path)
    (series,) = history.series
    assert [row.commit for row in series.rows] == [commit_name(n) for n in range(1, 21)]
    assert {row.runs for row in series.rows} == {2}
    (change,) = series.changes
    assert (change.row, change.before, change.after) == (11, commit_name(11), commit_name(12))
    assert change.worse
    assert change.estimate.low < 1.1 < change.estimate.high
    levels = [math.exp(np.mean([math.log(row.value) for row in part])) for part in (series.rows[:11], series.rows[11:])]
    assert change.estimate.value == pytest.approx(levels[1] / levels[0])
    assert (series.rows[0].level, series.rows[-1].level) == pytest.approx(tuple(levels))
    assert 0.002 < series.noise < 0.01
    assert History.from_json(history.to_json()) == history


def test_throughput_falls_when_step_time_rises(store, tmp_path):
    (change,) = read_history(store, metric="throughput", repository=tmp_path).series[0].changes
    assert change.estimate.value == pytest.approx(1 / 1.1, abs=0.01)
    assert change.worse


def test_equal_values_have_no_noise(store, tmp_path):
    (series,) = read_history(store, metric="device_memory", repository=tmp_path).series
    assert (series.changes, series.noise) == ((), None)
    assert series.rows[0].value == 2**30


def test_accuracy_is_a_difference(tmp_path):
    for number in range(1, 17):
        accuracy = (0.9 if number < 9 else 0.8) + 0.001 * (number % 3)
        write_run(
            tmp_path / "runs" / str(number), started=DAY_S * number, accuracies=(accuracy,),
            code__revision=commit_name(number),
        )  # fmt: skip
    add_runs(tmp_path / "store", [tmp_path / "runs"], repository=tmp_path)
    history = read_history(tmp_path / "store", metric="accuracy", repository=tmp_path)
    (change,) = history.series[0].changes
    assert change.estimate.value == pytest.approx(-0.1, abs=0.002)
    assert change.worse
    assert history.quality == "val_acc"


@pytest.mark.parametrize(
    ("facts", "fact"),
    [
        ({"host__name": "other-box"}, "host.name"),
        ({"version__torch": "2.16.0"}, "version.torch"),
        ({"train__precision": "bf16-mixed"}, "train.precision"),
        ({"data__manifest": "d2"}, "data.manifest"),
        ({"device__name": "A100"}, "device.name"),
    ],
)
def test_other_machines_and_settings_are_series_of_their_own(store, tmp_path, facts, fact):
    for number in (30, 31, 32):
        write_commit(tmp_path / "others", number, 150.0, **facts)
    add_runs(store, [tmp_path / "others"], repository=tmp_path)
    history = read_history(store, repository=tmp_path)
    assert [len(series.rows) for series in history.series] == [3, 20]
    assert fact in {difference.fact for difference in history.series[1].differs}
    assert "A series of its own, because it differs from series 1 in" in history.to_markdown()
    together = read_history(store, allow=[fact], repository=tmp_path)
    assert [len(series.rows) for series in together.series] == [23]


def test_commits_on_both_machines_have_two_rows(store, tmp_path):
    write_commit(tmp_path / "others", 5, 150.0, seed=1, host__name="other-box")
    add_runs(store, [tmp_path / "others"], repository=tmp_path)
    history = read_history(store, repository=tmp_path)
    found = [
        (series.machine, row.runs) for series in history.series for row in series.rows if row.commit == commit_name(5)
    ]
    assert sorted(found) == [("gpu-box", 2), ("other-box", 2)]


def test_runs_that_do_not_count(tmp_path):
    write_commit(tmp_path / "runs", 1, 100.0)
    write_run(tmp_path / "runs" / "failed", outcome=Outcome.FAILED, started=5.0)
    write_run(tmp_path / "runs" / "warm", place=Place("s", "a", 0, 0), started=6.0)
    write_run(tmp_path / "runs" / "hot", problems=("throttled",), started=7.0)
    added = add_runs(tmp_path / "store", [tmp_path / "runs"], repository=tmp_path)
    assert (added.added, added.left_out) == (5, {"failed": 1, "warm-up": 1, "invalid: throttled": 1})
    history = read_history(tmp_path / "store", repository=tmp_path)
    assert [row.runs for series in history.series for row in series.rows] == [2]
    assert "Runs that do not count: 1 failed, 1 invalid, 1 warm-up." in history.notes


def test_runs_without_a_commit_are_rows_of_their_own(tmp_path):
    for n in range(3):
        write_run(tmp_path / "runs" / str(n), started=float(n), code__revision=None)
    add_runs(tmp_path / "store", [tmp_path / "runs"], repository=tmp_path)
    history = read_history(tmp_path / "store", repository=tmp_path)
    assert [row.commit for row in history.series[0].rows] == [None] * 3
    assert history.notes[0] == "Runs without a commit, because they did not run in a git repository: 3."
    assert history.series[0].note == "3 rows: a change point needs at least 6."


def test_since(store, tmp_path):
    date = read_history(store, since="1970-01-10", repository=tmp_path)
    assert date.series[0].rows[0].commit == commit_name(9)
    commit = read_history(store, since=commit_name(14)[:8], repository=tmp_path)
    assert len(commit.series[0].rows) == 7
    with pytest.raises(HistoryError, match='--since "soon": neither a date nor a commit'):
        read_history(store, since="soon")
    with pytest.raises(HistoryError, match="no row of step_time since then"):
        read_history(store, since="2030-01-01")


def test_unknown_metrics(store):
    with pytest.raises(HistoryError, match=r'--metric "speed": unknown metric. Choose from: step_time, '):
        read_history(store, metric="speed")
    with pytest.raises(HistoryError, match=r'--metric "loss": no run in .* has it. Choose from: step_time, '):
        read_history(store, metric="loss")


def test_baselines(store, tmp_path):
    assert set_baseline(store, "main").commit == commit_name(20)
    set_baseline(store, "release/1.0", commit_name(3)[:6])
    set_baseline(store, "main", commit_name(4))
    history = read_history(store, repository=tmp_path)
    assert {one.name: one.commit for one in history.baselines} == {
        "main": commit_name(4),
        "release/1.0": commit_name(3),
    }
    assert history.series[0].rows[3].baselines == ("main",)
    with pytest.raises(HistoryError, match='commit "ffff": not in'):
        set_baseline(store, "x", "ffff")
    with pytest.raises(HistoryError, match="not unique"):
        set_baseline(store, "x", "abcd")
    with pytest.raises(HistoryError, match='baseline "a b": not a name'):
        set_baseline(store, "a b")


def git(folder, *arguments, date=None):
    person = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a"}
    when = {} if date is None else {"GIT_COMMITTER_DATE": f"{date} +0000", "GIT_AUTHOR_DATE": f"{date} +0000"}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | person | when).stdout


def test_git_orders_commits_and_lists_those_in_question(tmp_path):
    git(tmp_path, "init", "-q")
    # Measured backwards, as when a history is filled later, and only every second commit.
    for number in range(24):
        git(tmp_path, "commit", "--allow-empty", "-qm", f"Commit {number}", date=1_700_000_000 + 1000 * number)
        if number % 2:
            continue
        commit = git(tmp_path, "rev-parse", "HEAD").strip()[:12]
        ms = (100.0 if number < 12 else 112.0) + number % 4 / 10
        write_run(tmp_path / "runs" / str(number), step_ms=ms, started=-float(number), code__revision=commit, **GPU)
    add_runs(tmp_path / "store", [tmp_path / "runs"], repository=tmp_path)
    history = read_history(tmp_path / "store", repository=tmp_path)
    assert [row.subject for row in history.series[0].rows] == [f"Commit {n}" for n in range(0, 24, 2)]
    (change,) = history.series[0].changes
    assert [commit.subject for commit in change.commits] == ["Commit 11", "Commit 12"]
    assert change.commit_count == 2
    assert "Commits in question: 2" in history.to_markdown()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
        (change,) = read_history(tmp_path / "store", repository=elsewhere).series[0].changes
    assert (change.commit_count, [commit.subject for commit in change.commits]) == (None, ["Commit 12"])


def test_hostile_commits_are_no_options_of_git(tmp_path):
    write_run(tmp_path / "runs" / "a", code__revision="--output=evil")
    add_runs(tmp_path / "store", [tmp_path / "runs"], repository=tmp_path)
    assert not list(tmp_path.rglob("*evil*"))


def test_arms_of_a_study_with_equal_settings_are_named(tmp_path):
    for n, arm in enumerate(("old", "new") * 2):
        write_run(tmp_path / "runs" / str(n), started=float(n), place=Place("s", arm, 1 + n // 2, n % 2))
    add_runs(tmp_path / "store", [tmp_path / "runs"], repository=tmp_path)
    (series,) = read_history(tmp_path / "store", repository=tmp_path).series
    assert "Some rows pool arms of one study that have equal fingerprints: old, new." in series.note
    with pytest.raises(HistoryError, match=r"is not the folder of a study. Leave out --arm"):
        add_runs(tmp_path / "store", [tmp_path / "runs"], arms=["old"])


def test_a_folder_without_runs(tmp_path):
    with pytest.raises(CompareError, match="no run record"):
        add_runs(tmp_path / "store", [tmp_path])
    assert not (tmp_path / "store").exists()


def test_a_document_of_another_version(store, tmp_path):
    data = msgspec.json.decode(read_history(store, repository=tmp_path).to_json()) | {"schema_version": 99}
    with pytest.raises(HistoryError, match="the history has schema version 99, this lightning-perf reads 1"):
        History.from_json(msgspec.json.encode(data))


def test_re_runs_of_earlier_commits_tell_the_code_from_the_machine(store, tmp_path, capsys):
    (change,) = read_history(store, repository=tmp_path).series[0].changes
    assert change.confirmed is None
    assert main(["history", "--store", str(store)]) == 0
    assert "Possibly worse: the step time changed by" in capsys.readouterr().out
    for level, confirmed, text in ((100.0, True, "Worse: the step time"), (110.0, False, "The machine changed")):
        again = shutil.copytree(store, tmp_path / str(level))
        write_again(tmp_path / "again", 5, level)
        add_runs(again, [tmp_path / "again"], repository=tmp_path)
        shutil.rmtree(tmp_path / "again")
        (change,) = read_history(again, repository=tmp_path).series[0].changes
        assert change.confirmed is confirmed
        assert main(["history", "--store", str(again)]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert text in printed
        assert "Confirm it" not in printed


def write_again(folder, number, step_ms):
    """Leave two further runs of a commit, which ran after all others."""
    for run in range(2):
        facts = {"code__revision": commit_name(number), "train__seed": run, **GPU}
        write_run(folder / f"again{number}-{run}", step_ms=step_ms, started=DAY_S * (60 + number) + run, **facts)


def add_levels(folder, levels):
    rng = np.random.default_rng(3)
    for number, level in enumerate(levels, start=1):
        write_commit(folder / "runs", number, 100.0 * float(np.exp(level + rng.normal(0, 0.005))))
    add_runs(folder / "store", [folder / "runs"], repository=folder)
    (series,) = read_history(folder / "store", repository=folder).series
    return series


def test_a_trend_names_no_commit(tmp_path):
    series = add_levels(tmp_path, np.linspace(0, 0.1, 30))
    assert series.changes == ()
    assert "A trend or a season fits the rows better" in series.note


def test_a_level_that_returns_names_no_commit(tmp_path):
    series = add_levels(tmp_path, [0.0] * 12 + [0.1] * 5 + [0.0] * 12)
    assert series.changes == ()
    assert "Rows 13 to 17 were at another level, and the series returned." in series.note


def test_a_baseline_moves_although_an_earlier_clock_was_ahead(store):
    future = StoredBaseline(name="main", commit=commit_name(3), added_unix_s=4e9)
    open_store(store).append([future])
    set_baseline(store, "main", commit_name(5))
    set_baseline(store, "main", commit_name(7))
    assert {one.name: one.commit for one in read_history(store).baselines} == {"main": commit_name(7)}


def test_extreme_values_are_shown(tmp_path, capsys):
    runs = [
        StoredRun(
            run_id=str(n),
            started_unix_s=DAY_S * n,
            added_unix_s=1.0,
            commit=commit_name(n),
            facts={},
            values={"step_time": value},
        )
        for n, value in enumerate((1e308, 1e-308, 1e308, 1.0, 1e308, 1e300, 1e308, 5.0), start=1)
    ]
    open_store(tmp_path).append(runs)
    assert main(["history", "--store", str(tmp_path)]) == 0
    assert "e+3" in capsys.readouterr().out
