"""Files of a run with other content than they should have: exit code 2, and the file and the line are named."""

from pathlib import Path

import pytest

from lightning_perf.cli import main
from lightning_perf.commands import demo
from lightning_perf.run_files import journal
from lightning_perf.run_files.atomic import write_document
from lightning_perf.run_files.run_record import Place
from tests.compare.support import fake_study, write_run
from tests.test_saved_json import DEEP

BAD = {
    "deep": (DEEP, "nested too deeply"),
    "long": (b'{"type":"facts","step":1' + b"0" * 400 + b"}", "a number of more than 64 bits"),
    "wrong": (b"[5]", "Expected `object`, got `array`"),
}

# Each file, the line of its damage, and a command that reads it.
FILES = {
    "a/run.jsonl": (2, ["compare", "a", "b"]),
    "a/steps.rank0.jsonl": (2, ["analyze", "a"]),
    "a/estimates.jsonl": (2, ["explain", "--estimates", "a"]),
    "study/study.json": (None, ["compare", "study"]),
    "study/options.json": (None, ["compare", "study"]),
    "study/blocks/block001.jsonl": (2, ["compare", "study"]),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_run(Path("a"))
    write_run(Path("b"), step_ms=110)
    study = fake_study()
    Path("study").mkdir()
    write_document(Path("study/study.json"), study)
    for block in (1, 2):
        for position, arm in enumerate(study.arms):
            place = Place(study.study_id, arm.name, block, position)
            write_run(Path(f"study/runs/block{block:03}/{arm.name}/perf"), place=place)
            journal.append(Path("study"), block, journal.RunBegan(arm.name, 0, "perf", "cpu"))
            journal.append(Path("study"), block, journal.RunOver(arm.name, 0, 1.0))
        journal.append(Path("study"), block, journal.BlockOver(True))
    return tmp_path


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_content_is_named_with_its_line(
    name: str, kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, problem = BAD[kind]
    line, command = FILES[name]
    path = folder / name
    lines = path.read_bytes().splitlines() if path.exists() else [b""]
    path.write_bytes(b"\n".join([lines[0], data, *lines[1:], b""]) if line else data)
    assert main(command) == 2
    err = capsys.readouterr().err
    assert name in err
    assert problem in err
    assert line is None or f"line {line} " in err


@pytest.mark.parametrize("kind", BAD)
def test_the_figures_of_runs_do_not_need_the_report(kind: str, folder: Path) -> None:
    (folder / "a" / "report.json").write_bytes(BAD[kind][0])
    assert main(["compare", "a", "b"]) == 0


@pytest.mark.parametrize("kind", BAD)
def test_a_history_names_the_lines_that_it_skips(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "add", "a", "b", "--store=h"]) == 0
    with (folder / "h" / "history.jsonl").open("ab") as file:
        file.write(BAD[kind][0] + b"\n")
    assert main(["history", "--store=h"]) == 0
    assert "Skipped 1 entry that cannot be read: history.jsonl, line 5." in " ".join(capsys.readouterr().out.split())
    (folder / "h" / "history.jsonl").write_bytes(BAD[kind][0] + b"\n")
    assert main(["history", "--store=h"]) == 2
    assert "Skipped 1 entry that cannot be read: history.jsonl, line 1." in capsys.readouterr().err


def test_a_bug_is_not_a_failed_gate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: object) -> int:
        raise RecursionError("too deep")

    monkeypatch.setattr(demo, "run", fail)
    assert main(["demo"]) == 2
    err = capsys.readouterr().err
    assert "RecursionError: too deep" in err
    assert "Please report it" in err
