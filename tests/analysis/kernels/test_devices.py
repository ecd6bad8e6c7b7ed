from lightning_perf.analysis.kernels.tensor_core_eligibility import device_properties
from tests.support.trace_builder import TraceBuilder


def test_by_ordinal():
    trace = TraceBuilder().gpu("A", ordinal=0).gpu("B", ordinal=1).step(1, 0, 10).build()
    assert device_properties(trace, 1).name == "B"
    assert device_properties(trace, 5).name is None


def test_an_ordinal_that_no_device_has_is_of_the_one_kind_there_is():
    builder = TraceBuilder().gpu("AMD Instinct MI300X", ordinal=0).gpu("AMD Instinct MI300X", ordinal=1)
    trace = builder.step(1, 0, 10).build()
    assert device_properties(trace, 4).name == "AMD Instinct MI300X"


def test_a_trace_that_describes_none():
    assert device_properties(TraceBuilder().step(1, 0, 10).build(), 0).name is None
