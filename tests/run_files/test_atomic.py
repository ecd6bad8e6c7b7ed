"""Files that are replaced as a whole."""

import os
from pathlib import Path

import pytest

from lightning_perf.run_files.atomic import (
    atomic_file,
    encode_document,
    replace_file,
    write_document,
    write_named_file,
)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    for content in (b"first", b"second"):
        replace_file(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "report.json"
    replace_file(path, b"first")

    def fail() -> None:
        with atomic_file(path) as file:
            file.write(b"half of the sec")
            assert path.read_bytes() == b"first"
            raise error

    with pytest.raises(type(error)):
        fail()
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"first"


def test_a_folder_in_the_way_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "report.json").mkdir()
    with pytest.raises(OSError, match=r"report\.json"):
        replace_file(tmp_path / "report.json", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with atomic_file(path) as first, atomic_file(path) as second:
        first.write(b"first")
        second.write(b"second")
        assert all(part.name.startswith(".") for part in tmp_path.iterdir()), (
            "a scan takes a part for a file of the run"
        )
    assert path.read_bytes() == b"first", "the outer block ended last"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("mode", "expected"), [(None, 0o600), (0o644, 0o644)])
def test_permissions_follow_the_umask_unless_they_are_given(tmp_path: Path, mode: int | None, expected: int) -> None:
    before = os.umask(0o077)
    try:
        with atomic_file(tmp_path / "x", mode=mode) as file:
            file.write(b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == expected


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    replace_file(path, b"x")
    assert path.read_bytes() == b"x"


def test_a_document_is_indented_and_ends_with_a_newline(tmp_path: Path) -> None:
    write_document(tmp_path / "x.json", {"a": [1, None]})
    assert (tmp_path / "x.json").read_bytes() == encode_document({"a": [1, None]})
    assert (tmp_path / "x.json").read_text() == '{\n  "a": [\n    1,\n    null\n  ]\n}\n'


def test_a_file_that_the_user_named_keeps_its_link_and_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    write_named_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640
    write_named_file(tmp_path / "other", b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "other", "real"]


def test_a_pipe_and_a_device_take_the_content(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_named_file(tmp_path / "pipe", b"content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    write_named_file(Path("/dev/null"), b"content")
    assert Path("/dev/null").is_char_device()
