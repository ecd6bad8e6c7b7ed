"""Calls of compiled code, on hand-made recordings."""

from lightning_perf.analysis.compilation import CompiledFunction, compiled_calls
from tests.support.known import known
from tests.support.trace_builder import TraceBuilder

CHECK = "TorchDynamo Cache Lookup"


def region(number: str) -> str:
    return f"Torch-Compiled Region: {number}"


def test_checks_belong_to_the_next_call_on_their_thread() -> None:
    builder = TraceBuilder()
    for start in builder.steps(2, 1000):
        builder.op(CHECK, start + 10, 5).op(region("0/0"), start + 20, 400)
        builder.op(CHECK, start + 100, 7).op(region("3/1"), start + 110, 50)  # after a break, inside the first region
        builder.op(CHECK, start + 600, 2)  # of a function that runs uncompiled
        builder.op(CHECK, start + 605, 100, thread=2000).op(region("0/1"), start + 710, 10, thread=2000)
    calls = known(compiled_calls(builder.build()))
    assert (calls.steps, calls.checks, calls.check_ns, calls.compile_ns) == (2, 8, 2 * 114_000, 0)
    assert calls.functions == (CompiledFunction("0", 4, 2 * 105_000), CompiledFunction("3", 2, 2 * 7_000))


def test_compilations_in_the_recording_are_timed() -> None:
    builder = TraceBuilder().step(0, 0, 1000).step(1, 1000, 1000)
    builder.op(CHECK, 10, 5).op("entire_frame_compile", 20, 300).op("_compile.compile_inner (dynamo_timed)", 21, 298)
    builder.op(region("0/0"), 350, 10).op("entire_backward_compile", 400, 50)
    calls = known(compiled_calls(builder.build()))
    assert calls.compile_ns == 350_000
    assert calls.functions == (CompiledFunction("0", 1, 5_000),)


def test_a_region_without_a_check() -> None:
    calls = known(
        compiled_calls(TraceBuilder().step(0, 0, 100).op(region("0/0"), 10, 5).op(region("0/0"), 20, 5).build())
    )
    assert calls.functions == (CompiledFunction("0", 2, 0),)


def test_one_check_is_not_counted_for_two_regions() -> None:
    builder = TraceBuilder().step(0, 0, 100).op(CHECK, 5, 2).op(region("0/0"), 10, 5).op(region("1/0"), 20, 5)
    calls = known(compiled_calls(builder.build()))
    assert [(each.frame, each.check_ns) for each in calls.functions] == [("0", 2_000), ("1", 0)]
