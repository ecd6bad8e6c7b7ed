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


def lay(logdir: Path, files: dict[str, str | None]) -> None:
    """Write files with their text, or a trace in place of None."""
    for path, text in files.items():
        (logdir / path).parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            write_trace(logdir / path)
        else:
            (logdir / path).write_text(text)


STEP = STEPS.encode(StepSample(0, 1, 0, None, 1, False)).decode()


@pytest.mark.parametrize(
    ("files", "kinds"),
    [
        ({"a.pt.trace.json": None}, {".": "trace"}),
        ({f"fit/{name}_1.17.pt.trace.json.gz": None for name in "ab"}, {"fit": "trace"}),
        ({"v0/perf/r.pt.trace.json": None, "v0/perf/report.json": '{"schema_version": 1}'}, {"v0/perf": "run"}),
        ({"v0/hparams.json": "{}", "v1/steps.rank0.jsonl": STEP}, {"v1": "run"}),
        *(
            ({f"fit/{name}.rank0.jsonl": ""}, {"fit": "run"})
            for name in ("captures", "loss_scale", "notes", "underflow", "windows")
        ),
        # Other JSON files are traces if they begin like one.
        ({"exported/trace.json": None, "zipped/trace.json.gz": None}, {"exported": "trace", "zipped": "trace"}),
        ({"config.json": '{"lr": 0.1}', "broken/x.json.gz": "\x1f\x8bnonsense"}, {}),
        # Files of other tools with our names
        ({"report.json": '{"coverage": 1}', "study.json": '{"trials": []}', "tradeoff.json": '{"alpha": 1}'}, {}),
        (
            {"x/a.pt.trace.json": None, "x/study.json": '{"arms": []}', "x/tradeoff.json": '{"schema_version": 1}'},
            {"x": "trace", "x (study)": "study", "x (inference)": "inference"},
        ),
    ],
)
def test_kinds_of_runs(logdir: Path, files: dict[str, str | None], kinds: dict[str, str]) -> None:
    lay(logdir, files)
    assert {name: run.kind for name, run in found(logdir).runs.items()} == kinds


def test_files_of_a_run(logdir: Path) -> None:
    """Captures belong to their run, and are runs of their own. The profiler's own names win over other JSON files."""
    traces = [f"fit/host_{rank}.{window}.pt.trace.json" for rank in (1, 2) for window in (17, 29)]
    capture = "fit/slow-step-120/rank0.17.pt.trace.json"
    others = ["fit/captures.rank0.jsonl", "fit/precision.json", "fit/report.json"]
    texts = dict(zip(others, ("", "{}", '{"schema_version": 1}'), strict=True))
    lay(logdir, {**dict.fromkeys([*traces, capture, "fit/copy.json", "fit/other/a.pt.trace.json"]), **texts})
    runs = found(logdir).runs
    assert list(runs) == ["fit", "fit/other", "fit/slow-step-120"]
    assert [file.path for file in runs["fit"].traces] == traces
    assert [file.path for file in runs["fit"].others] == [*others, capture]


def test_a_study_has_its_runs_files_and_they_know_it(logdir: Path) -> None:
    study = ["amp/blocks/block001.jsonl", "amp/blocks/block001/fp32/run.jsonl"]
    study += ["amp/blocks/block001/fp32/steps.rank0.jsonl", "amp/study.json"]
    traces = ["amp/blocks/block001/fp32/rank0.17.pt.trace.json", "amp_other/a.pt.trace.json"]
    lay(logdir, {**dict.fromkeys(study, '{"arms": []}'), **dict.fromkeys(traces)})
    runs = found(logdir).runs
    assert {name: (run.kind, run.study) for name, run in runs.items()} == {
        "amp": ("study", None),
        "amp/blocks/block001/fp32": ("run", "amp"),
        "amp_other": ("trace", None),
    }
    assert sorted(file.path for file in runs["amp"].others) == study


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
    assert not found(logdir).runs


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
