from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_perf.run_files.steps import STEPS, StepSample
from lightning_perf.tensorboard.discovery import Scanner, Sniffer, Table, discover, read_roots, roots_of
from tests.tensorboard.support import write_trace


def found(logdir: Path | str, sniffer: Sniffer | None = None) -> Table:
    return discover(read_roots(str(logdir), None), sniffer or Sniffer())


def kinds(logdir: Path) -> dict[str, str]:
    return {name: run.kind for name, run in found(logdir).runs.items()}


def test_a_folder_of_traces_is_one_run_with_its_workers_and_windows(logdir: Path) -> None:
    for name in ("host_1.17", "host_1.29", "host_2.17"):
        write_trace(logdir / "fit" / f"{name}000000000.pt.trace.json")
    write_trace(logdir / "other" / "rank0.1.pt.trace.json.gz")
    runs = found(logdir).runs
    assert list(runs) == ["fit", "other"]
    assert [file.name for file in runs["fit"].traces] == [
        "host_1.17000000000.pt.trace.json",
        "host_1.29000000000.pt.trace.json",
        "host_2.17000000000.pt.trace.json",
    ]
    assert runs["fit"].kind == "trace"


def test_what_perf_callback_left_is_a_run(logdir: Path) -> None:
    write_trace(logdir / "v0" / "perf" / "rank0.17.pt.trace.json.gz")
    (logdir / "v0" / "hparams.json").write_text("{}")
    (logdir / "v0" / "perf" / "report.json").write_text('{"schema_version": 1}')
    (logdir / "v0" / "perf" / "precision.json").write_text("{}")
    (logdir / "v1").mkdir()
    (logdir / "v1" / "steps.rank0.jsonl").write_bytes(STEPS.encode(StepSample(0, 1, 0, None, 1, False)))
    runs = found(logdir).runs
    assert {name: run.kind for name, run in runs.items()} == {"v0/perf": "run", "v1": "run"}
    assert [file.name for file in runs["v0/perf"].others] == ["precision.json", "report.json"]
    assert [file.name for file in runs["v0/perf"].traces] == ["rank0.17.pt.trace.json.gz"]


@pytest.mark.parametrize("name", ["captures", "loss_scale", "notes", "steps", "underflow", "windows"])
def test_each_log_of_a_fit_makes_its_folder_a_run(logdir: Path, name: str) -> None:
    (logdir / "fit").mkdir()
    (logdir / "fit" / f"{name}.rank0.jsonl").write_text("")
    assert kinds(logdir) == {"fit": "run"}


def test_captures_belong_to_their_run_and_are_runs_of_their_own(logdir: Path) -> None:
    (logdir / "fit" / "slow-step-120").mkdir(parents=True)
    (logdir / "fit" / "captures.rank0.jsonl").write_text("")
    write_trace(logdir / "fit" / "slow-step-120" / "rank0.17.pt.trace.json")
    write_trace(logdir / "fit" / "other" / "rank0.17.pt.trace.json")
    runs = found(logdir).runs
    assert list(runs) == ["fit", "fit/other", "fit/slow-step-120"]
    assert [file.path for file in runs["fit"].others] == [
        "fit/captures.rank0.jsonl",
        "fit/slow-step-120/rank0.17.pt.trace.json",
    ]


def test_the_log_directory_itself_may_be_the_run(logdir: Path) -> None:
    write_trace(logdir / "a.pt.trace.json")
    assert kinds(logdir) == {".": "trace"}


def test_json_files_of_other_names_are_traces_when_they_begin_like_one(logdir: Path) -> None:
    write_trace(logdir / "exported" / "trace.json")
    write_trace(logdir / "zipped" / "trace.json.gz")
    (logdir / "config").mkdir()
    (logdir / "config" / "config.json").write_text('{"lr": 0.1}')
    (logdir / "broken").mkdir()
    (logdir / "broken" / "x.json.gz").write_bytes(b"\x1f\x8bnonsense")
    assert kinds(logdir) == {"exported": "trace", "zipped": "trace"}


def test_profiler_s_own_names_win_over_other_json_files(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    write_trace(logdir / "fit" / "copy.json")
    assert [file.name for file in found(logdir).runs["fit"].traces] == ["a.pt.trace.json"]


def test_a_report_of_another_tool_is_none(logdir: Path) -> None:
    (logdir / "report.json").write_text('{"coverage": 1}')
    assert kinds(logdir) == {}


def test_a_study_has_its_runs_files_and_they_know_it(logdir: Path) -> None:
    study = logdir / "amp"
    run = study / "blocks" / "block001" / "fp32"
    run.mkdir(parents=True)
    (study / "study.json").write_text('{"arms": []}')
    (study / "blocks" / "block001.jsonl").write_text("")
    (run / "run.jsonl").write_text("")
    (run / "steps.rank0.jsonl").write_text("")
    write_trace(run / "rank0.17.pt.trace.json")
    write_trace(logdir / "amp_other" / "a.pt.trace.json")
    runs = found(logdir).runs
    assert {name: run.kind for name, run in runs.items()} == {
        "amp": "study",
        "amp/blocks/block001/fp32": "run",
        "amp_other": "trace",
    }
    assert runs["amp/blocks/block001/fp32"].study == "amp"
    assert runs["amp_other"].study is None
    assert sorted(file.path for file in runs["amp"].others) == [
        "amp/blocks/block001.jsonl",
        "amp/blocks/block001/fp32/run.jsonl",
        "amp/blocks/block001/fp32/steps.rank0.jsonl",
        "amp/study.json",
    ]


def test_a_study_of_another_tool_is_none(logdir: Path) -> None:
    (logdir / "study.json").write_text('{"trials": []}')
    assert kinds(logdir) == {}


def test_a_tradeoff_of_another_tool_is_none(logdir: Path) -> None:
    (logdir / "tradeoff.json").write_text('{"alpha": 0.5}')
    assert kinds(logdir) == {}


def test_a_study_within_a_study_has_its_own_runs_and_both_have_their_files(logdir: Path) -> None:
    for folder in ("outer", "outer/inner"):
        (logdir / folder / "runs" / "a").mkdir(parents=True)
        (logdir / folder / "study.json").write_text('{"arms": []}')
        (logdir / folder / "runs" / "a" / "run.jsonl").write_text("")
    runs = found(logdir).runs
    assert {name: run.study for name, run in runs.items() if run.kind == "run"} == {
        "outer/runs/a": "outer",
        "outer/inner/runs/a": "outer/inner",
    }
    assert [len(runs[name].others) for name in ("outer", "outer/inner")] == [3, 2]


def test_two_kinds_in_one_folder_have_names_of_their_own(logdir: Path) -> None:
    write_trace(logdir / "x" / "a.pt.trace.json")
    (logdir / "x" / "study.json").write_text('{"arms": []}')
    (logdir / "x" / "tradeoff.json").write_text('{"schema_version": 1}')
    assert kinds(logdir) == {"x": "trace", "x (study)": "study", "x (inference)": "inference"}


def test_groups_stand_before_the_names(logdir: Path) -> None:
    write_trace(logdir / "a" / "fit" / "a.pt.trace.json")
    write_trace(logdir / "b" / "fit" / "b.pt.trace.json")
    spec = f"before:{logdir}/a,{logdir}/b,{logdir}/a"
    runs = discover(read_roots(None, spec), Sniffer()).runs
    assert list(runs) == ["before/fit", "fit", "fit (trace)"]
    assert runs["fit"].traces[0].name == "b.pt.trace.json"


def test_a_root_that_fails_does_not_hide_the_others(logdir: Path) -> None:
    write_trace(logdir / "fit" / "a.pt.trace.json")
    table = discover(read_roots(None, f"nosuchscheme://x,{logdir}"), Sniffer())
    assert list(table.runs) == ["fit"]
    assert "nosuchscheme://x cannot be reached" in table.notes[0]


def test_looks_into_each_version_of_a_file_once(logdir: Path) -> None:
    file, sniffer = logdir / "a.json", Sniffer()
    file.write_text("{}")
    os.utime(file, ns=(0, 0))
    assert not found(logdir, sniffer).runs
    write_trace(file)
    os.utime(file, ns=(0, 0))  # as if it had not changed
    assert not found(logdir, sniffer).runs
    os.utime(file, ns=(1, 1))
    assert list(found(logdir, sniffer).runs) == ["."]


def test_looks_into_no_more_files_than_it_may(logdir: Path) -> None:
    for number in range(5):
        write_trace(logdir / str(number) / "trace.json")
    sniffer = Sniffer(most_files=3)
    assert len(found(logdir, sniffer).runs) == 3
    assert len(found(logdir, sniffer).runs) == 5  # the next look goes on with the others


def test_a_gzip_bomb_is_not_unpacked(logdir: Path) -> None:
    (logdir / "bomb.json.gz").write_bytes(gzip.compress(b" " * (8 << 20) + b'{"traceEvents": []}'))
    assert kinds(logdir) == {}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("/logs/a", [("", "/logs/a")]),
        ("a:/logs/a,b:/logs/b", [("a", "/logs/a"), ("b", "/logs/b")]),
        ("/logs/a:b", [("", "/logs/a:b")]),
        ("s3://bucket/logs", [("", "s3://bucket/logs")]),
        ("far:s3://bucket/logs,near:/logs", [("far", "s3://bucket/logs"), ("near", "/logs")]),
        ("simplecache::s3://bucket/logs", [("", "simplecache::s3://bucket/logs")]),
        ("a:/logs/x:y", [("a", "/logs/x:y")]),
        ("/logs/a,,", [("", "/logs/a")]),
        ("", []),
    ],
)
def test_reads_the_spec_as_tensorboard_does(spec: str, expected: list[tuple[str, str]]) -> None:
    assert [(group, storage.location) for group, storage in read_roots("", spec)] == expected


def test_agrees_with_tensorboard_s_own_reading() -> None:
    ingester = pytest.importorskip("tensorboard.backend.event_processing.data_ingester")
    spec = "a:/logs/a,/logs/b,b:/logs/c:d,gs://x/y,c:gs://x/z"
    theirs = ingester._parse_event_files_spec(spec)
    ours = {storage.location: group or None for group, storage in read_roots(None, spec)}
    assert ours == theirs


def test_a_log_directory_may_be_relative_or_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert read_roots("runs", None)[0][1].location == str(tmp_path / "runs")
    assert read_roots("~/runs", None)[0][1].location == "/home/someone/runs"
    assert read_roots("file:///logs", None)[0][1].location == "/logs"


def test_credentials_in_a_url_are_not_shown() -> None:
    assert read_roots("ftp://me:secret@host/logs", None)[0][1].location == "ftp://host/logs"


def test_a_context_may_lack_its_flags() -> None:
    assert roots_of(SimpleNamespace(logdir=None, flags=None)) == ()
    flags = SimpleNamespace(logdir="", logdir_spec="a:/x")
    assert [group for group, _ in roots_of(SimpleNamespace(logdir="", flags=flags))] == ["a"]


def test_new_runs_appear_and_a_failing_look_keeps_them(logdir: Path) -> None:
    failing = False

    def find(roots: Any, sniffer: Sniffer) -> Table:
        if failing:
            raise RuntimeError("boom")
        return discover(roots, sniffer)

    scanner = Scanner(read_roots(str(logdir), None), fresh_s=0.0, fresh_looks=0.0, patience_s=60.0, find=find)
    assert scanner.table(60.0) == Table()
    write_trace(logdir / "a.pt.trace.json")
    table = scanner.table(60.0)
    assert table is not None
    failing = True
    assert scanner.table(60.0) == Table(table.runs, ("The runs cannot be listed (RuntimeError: boom).",))
    assert list(table.runs) == ["."]


def test_nobody_waits_for_a_slow_folder_longer_than_asked() -> None:
    go_on = threading.Event()
    calls: list[int] = []

    def slow(*_: Any) -> Table:
        calls.append(1)
        go_on.wait(60.0)
        return Table()

    scanner = Scanner((), fresh_s=3600.0, find=slow)
    assert scanner.table(0.0) is None
    assert scanner.table(0.0) is None
    go_on.set()
    assert scanner.table(60.0) is scanner.table(60.0) is not None
    assert calls == [1]
