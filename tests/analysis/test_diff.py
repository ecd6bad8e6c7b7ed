import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.analysis.diff import Diff, diff
from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.trace.trace import Trace
from tests.support.trace_builder import TraceBuilder


def compare(before: Trace, after: Trace) -> Diff:
    return diff(analyze_rank(before), analyze_rank(after))


def run(steps: int, kernel_times: dict[str, float]) -> Trace:
    builder = TraceBuilder()
    for n in range(steps):
        begin = at = 1000 * n
        builder.step(n, begin, 1000)
        for name, duration in kernel_times.items():
            builder.op(f"aten::{name}", at, 10)
            builder.launch(name, call_us=at + 2, call_duration_us=4, start_us=at + 10, duration_us=duration)
            at += 200
    return builder.build()


def test_kernels_and_operators_that_changed_appeared_and_vanished():
    value = compare(run(2, {"gemm": 100, "relu": 20, "layout": 30}), run(4, {"gemm": 40, "relu": 20, "cast": 12}))
    assert (value.before_steps, value.after_steps, value.step.verdict) == (2, 4, "same")
    for table, prefix in ((value.kernels, ""), (value.operators_device, "aten::")):
        assert [(row.name, row.before_ns, row.after_ns, row.change_ns, row.verdict) for row in table.rows] == [
            (f"{prefix}gemm", 100_000, 40_000, -60_000, "faster"),
            (f"{prefix}layout", 30_000, None, -30_000, "vanished"),
            (f"{prefix}cast", None, 12_000, 12_000, "appeared"),
            (f"{prefix}relu", 20_000, 20_000, 0, "same"),
        ]
        assert (table.before_ns, table.after_ns, table.change_ns) == (150_000, 72_000, -78_000)
        assert table.rows[0].ratio == pytest.approx(0.4)
    assert (value.kernels.rows[0].before_calls, value.kernels.rows[0].after_calls) == (1, 1)
    compute = next(row for row in value.categories.rows if row.name == "device_compute")
    assert compute.change_ns == -78_000


def test_run_without_a_device_against_one_with_it():
    cpu = TraceBuilder().step(1, 0, 100).op("aten::mm", 0, 80).build()
    gpu = TraceBuilder().step(1, 0, 50).op("aten::mm", 0, 10).kernel("gemm", 20, 30, 1).build()
    value = compare(cpu, gpu)
    assert (value.step.verdict, value.step.ratio) == ("faster", 0.5)
    assert value.operators_device is None
    assert [(row.name, row.verdict) for row in value.kernels.rows] == [("gemm", "appeared")]
    assert value.categories.change_ns == -50_000
    assert compare(cpu, cpu).kernels is None


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 190), min_size=1),
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 190), min_size=1),
    st.integers(1, 3),
)
def test_changes_sum_to_the_totals(before, after, steps):
    value = compare(run(1, before), run(steps, after))
    assert value.kernels.change_ns == pytest.approx(1000 * (sum(after.values()) - sum(before.values())))
    for table in (value.categories, value.operators_host, value.operators_device, value.kernels):
        assert sum(row.change_ns for row in table.rows) == pytest.approx(table.change_ns, abs=1e-3)
        assert table.after_ns - table.before_ns == table.change_ns
    assert value.categories.change_ns == pytest.approx(value.step.change_ns, abs=1e-3)


@pytest.mark.corpus
def test_real_trace_against_itself(trace):
    value = compare(trace, trace)
    tables = [value.categories, value.operators_host, value.operators_device, value.kernels]
    assert all(r.verdict == "same" and r.change_ns == 0 for table in tables if table for r in table.rows)
    assert value.categories.before_ns == pytest.approx(value.step.before_ns)
    assert msgspec.json.decode(msgspec.json.encode(value), type=Diff) == value
