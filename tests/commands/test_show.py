"""Every document is shown by one function: the files that were asked for, then the text or the JSON."""

import subprocess
import sys
from pathlib import Path

import pytest

import lightning_perf
from lightning_perf.cli import main

DEMO = Path(lightning_perf.__file__).parent / "demo" / "recordings"


@pytest.mark.parametrize("option", ["--html", "--markdown"])
def test_a_file_that_cannot_be_written_costs_no_other_output(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {"--html": "--markdown", "--markdown": "--html"}[option]
    written = tmp_path / "new" / "file"
    arguments = ["diff", str(DEMO / "before"), str(DEMO / "after"), "--json"]
    assert main([*arguments, option, str(tmp_path), other, str(written)]) == 2
    streams = capsys.readouterr()
    assert streams.out.startswith("{")
    assert str(tmp_path) in streams.err
    assert written.stat().st_size


def test_all_files_that_cannot_be_written_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "file"
    taken.touch()
    files = [f"--html={taken}/a.html", f"--markdown={taken}/b.md"]
    assert main(["analyze", str(DEMO / "before"), *files]) == 2
    streams = capsys.readouterr()
    assert streams.out.startswith("Where")
    assert f"{taken}/a.html" in streams.err
    assert f"{taken}/b.md: cannot be written" in streams.err


FULL_DISK = """
import resource, sys
from lightning_perf.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # each file gets 1,000 bytes, then an error
sys.exit(main(sys.argv[1:]))
"""


def test_a_full_disk_leaves_the_old_files(tmp_path: Path) -> None:
    files = [tmp_path / "a.html", tmp_path / "b.md"]
    for file in files:
        file.write_text("the old report")
    arguments = ["diff", str(DEMO / "before"), str(DEMO / "after"), f"--html={files[0]}", f"--markdown={files[1]}"]
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert all(str(file) in done.stderr for file in files)
    assert [file.read_text() for file in sorted(tmp_path.iterdir())] == ["the old report"] * 2
