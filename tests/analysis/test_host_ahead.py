"""A host that runs one whole step ahead of the device, as in each training that the device bounds."""

import pytest

from lightning_perf.analysis.host.launches import launches
from lightning_perf.analysis.host.waits import sync_points
from lightning_perf.analysis.kernels.flops import count_flops
from lightning_perf.analysis.model.operators import operators
from lightning_perf.trace.trace import Trace
from tests.support.trace_builder import TraceBuilder

STEPS, CALLS, STEP_US = 3, 10, 1000


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Each step issues ten products, which the device computes in the next 1,000 µs; then the profiler synchronizes."""
    builder = TraceBuilder().gpu("NVIDIA H200")
    builder.device("kernel", "gemm_of_an_earlier_step", 0, STEP_US)
    for number in range(STEPS):
        at = number * STEP_US
        builder.step(number + 10, at, STEP_US)
        for call in range(CALLS):
            issued = at + 20 * call
            builder.op("aten::mm", issued, 15, types=["float", "float"], dims=[[64, 64], [64, 64]])
            builder.launch(
                "ampere_sgemm_64x64_nn", call_us=issued + 2, call_duration_us=5,
                start_us=at + STEP_US + 100 * call, duration_us=100,
            )  # fmt: skip
    builder.runtime("cudaDeviceSynchronize", STEPS * STEP_US, STEP_US)
    return builder.build()


def test_a_step_lasts_as_long_as_its_device_work(trace: Trace) -> None:
    assert ((trace.steps.end_ns - trace.steps.start_ns) // 1000).tolist() == [STEP_US] * STEPS
    assert (trace.steps.start_ns[0] - trace.steps.host_start_ns[0]) // 1000 == STEP_US


def test_what_the_host_issued_for_a_step_counts_for_it(trace: Trace) -> None:
    (row,) = operators(trace).rows
    assert (row.calls, row.device_self_ns) == (STEPS * CALLS, STEPS * STEP_US * 1000)
    count = count_flops(trace)
    assert count.coverage == 1.0
    assert int(count.least.sum()) == STEPS * CALLS * 2 * 64**3
    found = launches(trace)
    assert found is not None
    assert found.calls == STEPS * CALLS


def test_the_profilers_own_wait_at_its_end_is_none_of_the_training(trace: Trace) -> None:
    found = sync_points(trace)
    assert found is not None
    assert found.wait_ns == 0
