from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.callbacks.recording.capture_requests import (
    AGREED_AHEAD_NS,
    LOOK_EVERY_NS,
    FileRequests,
    SignalRequests,
)

SECOND = 1_000_000_000
needs_signal = pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="this system has no SIGUSR2")


def test_a_touched_file_is_taken_once(tmp_path: Path) -> None:
    requests = FileRequests(tmp_path, rank=0, world_size=1)
    assert requests.look(0, 5, 100) is None
    (tmp_path / "profile-now").touch()
    assert requests.look(LOOK_EVERY_NS - 1, 6, 100) is None  # looked for once a second
    assert requests.look(LOOK_EVERY_NS, 7, 100) == 7
    assert not (tmp_path / "profile-now").exists()
    assert requests.look(3 * LOOK_EVERY_NS, 8, 100) is None


def test_all_ranks_start_at_one_step_that_none_has_reached(tmp_path: Path) -> None:
    ranks = [FileRequests(tmp_path, rank=rank, world_size=3) for rank in range(3)]
    (tmp_path / "profile-now").touch()
    assert ranks[1].look(0, 40, SECOND // 10) is None  # rank 0 has not seen it yet
    start = ranks[0].look(0, 40, SECOND // 10)
    assert start == 40 + AGREED_AHEAD_NS * 10 // SECOND
    assert [rank.look(SECOND, 50, SECOND // 10) for rank in ranks[1:]] == [start, start]
    assert [rank.look(3 * SECOND, 60, SECOND // 10) for rank in ranks] == [None, None, None]
    assert not (tmp_path / "profile-now").exists()


def test_an_answer_of_an_earlier_fit_is_none_to_this(tmp_path: Path) -> None:
    (tmp_path / ".profile-at").write_text("17")
    assert FileRequests(tmp_path, rank=1, world_size=2).look(0, 5, 100) is None
    (tmp_path / ".profile-at").write_text("no number")
    assert FileRequests(tmp_path, rank=1, world_size=2).look(0, 5, 100) is None


@needs_signal
def test_a_signal_is_heard_once_and_its_handler_restored() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    requests = SignalRequests()
    assert not requests.take()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert requests.take()
    assert not requests.take()
    requests.remove()
    assert signal.getsignal(signal.SIGUSR2) == before


@needs_signal
def test_the_users_own_handler_is_called_too_and_a_later_one_left_alone() -> None:
    calls: list[int] = []

    def own(number: int, frame: Any) -> None:
        calls.append(number)

    before = signal.signal(signal.SIGUSR2, own)
    try:
        requests = SignalRequests()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert calls == [signal.SIGUSR2]
        assert requests.take()
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        requests.remove()
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR2, before)


@needs_signal
def test_another_thread_cannot_have_a_signal() -> None:
    failures: list[str] = []

    def ask() -> None:
        try:
            SignalRequests()
        except RuntimeError as error:
            failures.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert failures == ["signals can be handled in the main thread only"]
