from lightning_perf.analysis.steps.categories import CATEGORIES, DEVICE_CATEGORIES, device_rows, host_sets
from lightning_perf.trace.columns import DeviceKind
from tests.support.trace_builder import TraceBuilder


def test_every_category_without_parts_is_filled_by_one_set_in_order():
    parents = {parent for _, parent in CATEGORIES}
    host = [name for name, _ in host_sets(TraceBuilder().step(1, 0, 10).build())]
    assert [name for name, _ in CATEGORIES if name not in parents] == [*DEVICE_CATEGORIES, *host, "host_other"]
    assert list(DEVICE_CATEGORIES.values()) == list(DeviceKind)


def test_device_rows_of_a_kind():
    trace = TraceBuilder().kernel("a", 0, 5).memcpy("HtoD", 1, 5).kernel("b", 2, 5).build()
    assert device_rows(trace, DeviceKind.COMPUTE).tolist() == [0, 2]
    assert device_rows(trace, DeviceKind.H2D).tolist() == [1]


def test_host_sets_are_merged_over_threads():
    trace = TraceBuilder().step(1, 0, 10).op("a", 0, 2).op("b", 1, 3, thread=2000).op("c", 6, 1).build()
    active = dict(host_sets(trace))["host_compute"]
    assert list(zip(active.start_ns.tolist(), active.end_ns.tolist(), strict=True)) == [(0, 4000), (6000, 7000)]
