import pytest

from lightning_perf.analysis.host.loading import loading
from tests.support.known import known
from tests.support.trace_builder import TraceBuilder


@pytest.mark.parametrize(
    ("mark", "loader"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "in_process"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "workers"),
        ("enumerate(DataPipe)#Batcher", None),
    ],
)
def test_who_loads(mark: str, loader: str | None) -> None:
    found = known(loading(TraceBuilder().step(1, 0, 100).annotation(mark, 10, 30).build()))
    assert (found.loader, found.fetches, found.fetch_ns) == (loader, 1, 30_000)


def test_operators_in_the_fetch_and_pageable_copies() -> None:
    trace = (
        TraceBuilder()
        .step(1, 0, 100)
        .annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 30)
        .op("aten::stack", 35, 10)  # 5 of 10 µs inside
        .op("aten::stack", 10, 10, thread=77)  # another thread's
        .memcpy("HtoD", 50, 8, 1, bytes=4096, pinned=False)
        .memcpy("HtoD", 60, 8, 2, bytes=4096, pinned=True)
        .memcpy("DtoH", 70, 8, 3, bytes=4096, pinned=False)
        .build()
    )
    found = known(loading(trace))
    assert found.operator_ns == 5_000
    assert (found.pageable_copies, found.pageable_bytes, found.pageable_ns) == (1, 4096, 8_000)
