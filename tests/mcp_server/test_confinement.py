"""Paths and modules outside the folders of the server are refused, also behind links, and nothing can be changed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_perf.mcp_server.confinement import OutsideError, resolve_path, resolve_source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "trace.json").write_text("{}")
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "runs" / "link.json").symlink_to(tmp_path / "secret.json")
    (tmp_path / "runs" / "up").symlink_to(tmp_path)
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs" / "loop")
    return tmp_path / "runs"


@pytest.mark.parametrize("text", ["a/trace.json", "./a", ".", "a/../a/trace.json"])
def test_paths_in_the_folder(folder: Path, text: str) -> None:
    assert resolve_path(text, [folder]) == (folder / text).resolve()
    assert resolve_path(str(folder / text), [folder.parent / "secret.json", folder]) == (folder / text).resolve()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("../secret.json", "not in the folders"),
        ("/etc/passwd", "not in the folders"),
        ("/etc/absent", "not in the folders"),
        ("link.json", "not in the folders"),
        ("up/secret.json", "not in the folders"),
        ("up", "not in the folders"),
        ("loop", "no such file"),
        ("absent", "no such file"),
        ("x" * 5000, "no such file"),
        ("", "not a path"),
        ("a\0b", "not a path"),
        ("https://example.com/trace.json", "not a path"),
        ("file:///etc/passwd", "not a path"),
    ],
)
def test_paths_outside(folder: Path, text: str, problem: str) -> None:
    with pytest.raises(OutsideError, match=problem) as raised:
        resolve_path(text, [folder])
    assert str(folder) in str(raised.value)
    assert len(str(raised.value)) < 1000


def test_a_folder_with_the_same_beginning_is_outside(folder: Path) -> None:
    other = folder.with_name("runs2")
    other.mkdir()
    with pytest.raises(OutsideError):
        resolve_path(str(other), [folder])


def test_modules(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "mine.py").write_text("")
    (folder / "package").mkdir()
    (folder / "outside").symlink_to(folder.parent)
    assert resolve_source("mine:make", [folder]) == "mine:make"
    assert sys.path[0] == str(folder)
    assert resolve_source("package.training:Data.make", [folder]) == "package.training:Data.make"
    for text in ("os:system", "subprocess:run", "outside.x:y", "mine", "mine:", "mine:make()", "../mine:make", ":make"):
        with pytest.raises(OutsideError):
            resolve_source(text, [folder])


ATTEMPTS = """
import json, os, shutil, socket, subprocess, sys
from pathlib import Path
from lightning_perf.mcp_server.confinement import confine_process
folder = Path(sys.argv[1])
confine_process([folder.resolve()])
import colorsys, scipy.stats  # modules of this Python can still be loaded
found = {}
def attempt(name, action):
    try:
        action()
        found[name] = "done"
    except PermissionError:
        found[name] = "refused"
attempt("read", lambda: (folder / "a" / "trace.json").read_text())
attempt("list", lambda: list((folder / "a").iterdir()))
attempt("open again", lambda: os.fdopen(os.dup(0)).close())
attempt("read outside", lambda: (folder / ".." / "secret.json").read_text())
attempt("read a link", lambda: (folder / "link.json").read_bytes())
attempt("os.open outside", lambda: os.open("/etc/passwd", os.O_RDONLY))
attempt("list outside", lambda: os.listdir("/"))
attempt("scan a link", lambda: list(os.scandir(folder / "up")))
attempt("write", lambda: (folder / "new").write_text("x"))
attempt("append", lambda: open(folder / "a" / "trace.json", "a"))
attempt("os.open to write", lambda: os.open(folder / "a" / "trace.json", os.O_WRONLY))
attempt("mkdir", lambda: (folder / "b").mkdir())
attempt("remove", lambda: (folder / "a" / "trace.json").unlink())
attempt("rename", lambda: (folder / "a").rename(folder / "c"))
attempt("process", lambda: subprocess.run(["true"]))
attempt("shell", lambda: os.system("true"))
attempt("network", lambda: socket.create_connection(("127.0.0.1", 9)))
print(json.dumps(found))
"""


def test_a_confined_process_only_reads_the_folder(folder: Path) -> None:
    command = [sys.executable, "-c", ATTEMPTS, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name for name, outcome in found.items() if outcome == "done"} == {"read", "list", "open again"}
    assert sorted(path.name for path in folder.iterdir()) == ["a", "link.json", "loop", "up"]
