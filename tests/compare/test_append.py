import errno
import os

import pytest

from lightning_perf.compare.append import append_whole


def test_lines_follow_each_other(tmp_path):
    for text in (b"a\n", b"b\n"):
        append_whole(tmp_path / "x", text)
    assert (tmp_path / "x").read_bytes() == b"a\nb\n"


@pytest.mark.parametrize("room", [0, 3])
def test_what_a_full_disk_cuts_off_is_taken_back(tmp_path, monkeypatch, room):
    path = tmp_path / "x"
    append_whole(path, b"first\n")
    write = os.write
    left = [room]

    def full(descriptor, content):
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        part, left[0] = min(left[0], len(content)), 0
        return write(descriptor, content[:part])

    monkeypatch.setattr("os.write", full)
    with pytest.raises(OSError, match="No space left"):
        append_whole(path, b"second\n")
    monkeypatch.undo()
    assert path.read_bytes() == b"first\n"
    append_whole(path, b"third\n")
    assert path.read_bytes() == b"first\nthird\n"


def test_a_short_write_goes_on(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr("os.write", lambda descriptor, content: write(descriptor, content[:2]))
    append_whole(tmp_path / "x", b"abcde\n")
    assert (tmp_path / "x").read_bytes() == b"abcde\n"
