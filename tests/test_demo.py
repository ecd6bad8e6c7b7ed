"""``lightning-perf demo`` shows a real recording at once: without torch, without a network, without a browser."""

import importlib.util
import subprocess
import sys
import webbrowser
from pathlib import Path

import pytest

import lightning_perf
from lightning_perf.cli import main
from lightning_perf.demo import RECORDINGS, RUNS
from lightning_perf.lazy_imports import install_command
from lightning_perf.page.html import has_browser
from tests.support.absent_packages import without

MOST_BYTES = 500_000
HEAVY = {"torch", "lightning", "pytorch_lightning", "tensorboard", "scipy", "matplotlib"}
OFFLINE = """
import socket, sys
def refuse(*_):
    raise AssertionError("the demo must not use a network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from lightning_perf.cli import main
sys.exit(main(["demo", "--out", sys.argv[1]]))
"""


def test_the_recordings_are_small() -> None:
    assert sum(file.stat().st_size for file in RECORDINGS.rglob("*") if file.is_file()) < MOST_BYTES


def test_following_the_first_finding_removed_it() -> None:
    before, after = (lightning_perf.analyze(RECORDINGS / name) for name in RUNS)
    assert before.findings[0].kind == "input-bound"
    assert "num_workers=1" in before.findings[0].action
    assert "input-bound" not in {finding.kind for finding in after.findings}
    waits = [report.ranks[0].breakdown.category("input").mean_ns or 0.0 for report in (before, after)]
    assert waits[1] < waits[0] / 2


def test_it_works_without_torch_and_offline(tmp_path: Path) -> None:
    code = without(HEAVY, OFFLINE, error=ImportError)
    command = [sys.executable, "-c", code, str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Where ")
    assert (tmp_path / "demo" / "report.html").stat().st_size > 100_000


def test_it_says_where_the_page_is_and_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    folder = Path("lightning_perf_demo")
    (next_command,) = [line.split("Next:")[1].split() for line in out.splitlines() if "Next:" in line]
    assert f"Page:     {folder / 'report.html'}" in out
    assert (tmp_path / folder / "report.html").is_file()
    assert next_command == ["lightning-perf", "diff", str(folder / "before"), str(folder / "after")]
    assert main(next_command[1:]) == 0
    assert "waiting for input" in capsys.readouterr().out


def test_it_can_run_again_and_keeps_other_files(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for _ in range(2):
        assert main(["demo", "-o", str(tmp_path)]) == 0
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["after", "before", "mine.txt", "report.html"]


@pytest.mark.parametrize("installed", [True, False])
def test_it_says_how_to_get_charts(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr("lightning_perf.page.html._plotly", lambda: None)
    assert main(["demo", "-o", str(tmp_path)]) == 0
    assert (install_command("view") in capsys.readouterr().out) == (not installed)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    assert main(["demo", "--out", str(taken)]) == 2
    error = capsys.readouterr().err
    assert f"'{taken}'" in error
    assert "--out" in error


@pytest.mark.parametrize(
    ("terminal", "display", "options", "opened"),
    [(True, ":0", [], 1), (True, ":0", ["--no-browser"], 0), (True, "", [], 0), (False, ":0", [], 0)],
)
def test_a_browser_opens_only_where_a_user_can_see_it(
    terminal: bool, display: str, options: list[str], opened: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[str] = []
    monkeypatch.setattr(webbrowser, "open", pages.append)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    for name, value in (("DISPLAY", display), ("WAYLAND_DISPLAY", ""), ("BROWSER", "")):
        monkeypatch.setenv(name, value)
    assert main(["demo", "--out", str(tmp_path), *options]) == 0
    assert pages == [(tmp_path / "report.html").resolve().as_uri()] * opened


def test_systems_with_a_browser_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    for system, expected in (("darwin", True), ("linux", False)):
        monkeypatch.setattr(sys, "platform", system)
        assert has_browser(sys.stdout) == expected
    monkeypatch.setenv("BROWSER", "firefox")
    assert has_browser(sys.stdout)
