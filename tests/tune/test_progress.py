"""Progress while a process is silent."""

from __future__ import annotations

import threading

from lightning_perf.tune.progress import Progress


def test_a_silence_is_broken_by_the_time_left() -> None:
    lines: list[str] = []
    broken = threading.Event()

    def hear(line: str) -> None:
        lines.append(line)
        if "left" in line:
            broken.set()

    with Progress(hear, lambda: 300.0, every_s=0.01) as progress:
        progress.say("Measuring …", "compile: starting")
        assert broken.wait(20)
    assert lines[:2] == ["Measuring …", "  compile: starting, 5 min 0 s left"]
    assert not progress._thread.is_alive()


def test_nothing_is_said_without_an_activity() -> None:
    lines: list[str] = []
    with Progress(lines.append, lambda: 300.0, every_s=0.001) as progress:
        progress.say("one")
        threading.Event().wait(0.02)
    assert lines == ["one"]
