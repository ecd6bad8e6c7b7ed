"""Background threads: they continue after a pause, and end with what their generator has to close."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator

import pytest

from lightning_perf.callbacks.background import BackgroundThread, other_threads, pause, resume


class Counter:
    """Counts in a thread as fast as it can."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.idents: set[int] = set()
        self.reached = threading.Semaphore(0)
        self.closed_in = 0
        self.thread = BackgroundThread(self._count(), "counter")

    def _count(self) -> Generator[float, None, None]:
        try:
            for number in range(1_000_000):
                self.numbers.append(number)
                self.idents.add(threading.get_ident())
                self.reached.release()
                yield 0.001
        finally:
            self.closed_in = threading.get_ident()

    def wait_for_next(self) -> None:
        while self.reached.acquire(blocking=False):
            pass
        assert self.reached.acquire(timeout=10)


@pytest.fixture
def counter() -> Iterator[Counter]:
    made = Counter()
    yield made
    resume()
    made.thread.stop()


def test_a_pause_ends_the_thread_and_it_continues_where_it_was(counter: Counter) -> None:
    counter.thread.start()
    counter.wait_for_next()
    pause()
    before = len(counter.numbers)
    assert "counter" not in other_threads()
    assert not counter.closed_in
    resume()
    resume()
    counter.wait_for_next()
    assert "counter" in other_threads()
    counter.thread.stop()
    assert counter.numbers == list(range(len(counter.numbers)))
    assert len(counter.numbers) > before
    assert counter.closed_in in counter.idents - {threading.get_ident()}


def test_what_is_started_or_stopped_in_a_pause_has_no_thread(counter: Counter) -> None:
    pause()
    counter.thread.start()
    assert counter.numbers == []
    assert "counter" not in other_threads()
    resume()
    counter.wait_for_next()
    pause()
    counter.thread.stop()
    assert counter.closed_in == threading.get_ident()
    resume()
    assert "counter" not in other_threads()


def test_a_pause_does_not_wait_for_work_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_perf.callbacks.background.PATIENCE_S", 0.01)
    free, done = threading.Event(), threading.Event()
    order: list[str] = []

    def work() -> Generator[float, None, None]:
        order.append("first")
        free.wait()
        yield 0.0
        order.append("second")
        done.set()

    thread = BackgroundThread(work(), "worker")
    thread.start()
    pause()
    assert "worker" in other_threads()
    resume()  # its new thread waits for the old one: a generator cannot run in two
    free.set()
    assert done.wait(10)
    thread.join(10)
    assert thread.over
    assert order == ["first", "second"]
