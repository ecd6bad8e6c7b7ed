"""Pauses, and which Python functions of a recording are the user's own, on Linux, macOS and Windows."""

import pytest

from lightning_perf.analysis.host.waits import PhasePause, StopFlags, is_user_function, pauses, stop_flags, sync_points
from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.findings.ranks import stop_flags as find_stop_flags
from tests.support.known import known
from tests.support.trace_builder import FETCH, TraceBuilder


def test_wait_drain_and_gain() -> None:
    trace = (
        TraceBuilder()
        .step(1, 0, 1000)
        .launch("a", call_us=0, call_duration_us=5, start_us=10, duration_us=290)
        .op("aten::to", 100, 210)
        .op("aten::_to_copy", 110, 195)
        .runtime("cudaStreamSynchronize", 200, 100)  # until the kernel ends
        .launch("b", call_us=440, call_duration_us=5, start_us=450, duration_us=50)
        .runtime("cudaDeviceSynchronize", 480, 30)  # no operator; nothing is launched after it
        .build()
    )
    found = known(sync_points(trace))
    assert (sum(point.calls for point in found.points), found.wait_ns) == (2, 130_000)
    first, second = sorted(found.points, key=lambda point: (point.calls and point.operator) or "", reverse=True)
    assert first.operator == "aten::to"
    assert (first.wait_ns, first.drained_ns, first.regained_ns) == (100_000, 150_000, 100_000)
    # From its end to the end of the step.
    assert (second.operator, second.wait_ns, second.drained_ns, second.regained_ns) == (None, 30_000, 490_000, 30_000)


def test_a_copy_to_pageable_memory_and_the_wait_after_it_are_one() -> None:
    trace = (
        TraceBuilder()
        .step(1, 0, 1000)
        .launch("a", call_us=0, call_duration_us=5, start_us=10, duration_us=190)
        .op("aten::item", 90, 130)
        .runtime("cudaMemcpyAsync", 100, 110, 7)
        .device("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 200, 5, correlation=7)
        .runtime("cudaStreamSynchronize", 211, 2)
        .launch("b", call_us=240, call_duration_us=5, start_us=250, duration_us=50)
        .build()
    )
    found = known(sync_points(trace))
    (point,) = found.points
    assert (point.operator, point.call, point.calls) == ("aten::item", "cudaMemcpyAsync", 1)
    # From the end of the second call to the next kernel; after that the device has nothing to do either.
    assert (point.wait_ns, point.drained_ns, point.regained_ns) == (112_000, 37_000, 112_000)


def test_waits_with_a_launch_between_them_are_two() -> None:
    builder = TraceBuilder().step(1, 0, 1000).op("aten::nonzero", 0, 500)
    builder.launch("a", call_us=10, call_duration_us=5, start_us=20, duration_us=80)
    builder.runtime("cudaStreamSynchronize", 30, 70)
    builder.launch("b", call_us=150, call_duration_us=5, start_us=160, duration_us=40)
    builder.runtime("cudaStreamSynchronize", 170, 30)
    found = known(sync_points(builder.build()))
    assert (sum(point.calls for point in found.points), found.wait_ns) == (2, 100_000)


def test_the_wait_for_input_is_not_its_fault() -> None:
    trace = (
        TraceBuilder()
        .step(1, 0, 1000)
        .launch("a", call_us=0, call_duration_us=5, start_us=10, duration_us=190)
        .runtime("cudaStreamSynchronize", 100, 100)
        .annotation(FETCH, 220, 500)
        .launch("b", call_us=750, call_duration_us=5, start_us=760, duration_us=240)
        .build()
    )
    found = known(sync_points(trace))
    # Without the wait the fetch begins as much sooner, and so does what comes after it.
    assert (found.points[0].drained_ns, found.points[0].regained_ns) == (60_000, 100_000)


def test_a_wait_at_the_end_of_a_step_leaves_the_device_without_work_in_the_next() -> None:
    """As the progress bar's, once a batch is done: the next work comes after the next batch was fetched and moved."""
    builder = TraceBuilder()
    for step in range(3):
        start = 1000 * step
        builder.step(step + (5 if step == 2 else 0), start, 1000)  # the third is of another window
        builder.annotation("perf::fetch", start, 30).annotation("perf::forward", start + 50, 300)
        builder.launch("a", call_us=start + 190, call_duration_us=5, start_us=start + 200, duration_us=700)
        builder.op("aten::item", start + 400, 540).runtime("cudaStreamSynchronize", start + 410, 520)
    found = known(sync_points(builder.build()))
    (point,) = found.points
    assert (point.operator, point.phase, point.calls, point.wait_ns) == ("aten::item", "other", 3, 3 * 520_000)
    # From 930 to 1200 without the fetch; what follows on the second and the third was not recorded.
    assert (point.drained_ns, point.regained_ns) == (3 * 240_000, 3 * 270_000)


def test_the_wait_of_a_profiler_that_stops_is_none_of_the_training() -> None:
    """The device still works for the last step, which lasts until 2900. The host's mark of it ended at 2000."""
    builder = TraceBuilder().step(1, 0, 1000).step(2, 1000, 1000)
    builder.launch("a", call_us=10, call_duration_us=5, start_us=20, duration_us=100)
    builder.launch("b", call_us=1010, call_duration_us=5, start_us=1020, duration_us=1880)
    builder.runtime("cudaStreamSynchronize", 1500, 100)
    builder.runtime("cudaDeviceSynchronize", 2050, 850)
    found = known(sync_points(builder.build()))
    assert [(point.call, point.calls, point.wait_ns) for point in found.points] == [
        ("cudaStreamSynchronize", 1, 100_000)
    ]


def test_one_operator_in_two_phases_is_two_places() -> None:
    builder = TraceBuilder().step(1, 0, 1000).annotation("perf::forward", 0, 400)
    for at, name in ((100, "a"), (600, "b")):
        builder.launch(name, call_us=at, call_duration_us=5, start_us=at + 10, duration_us=90)
        builder.op("aten::item", at + 50, 60).runtime("cudaStreamSynchronize", at + 55, 50)
    found = known(sync_points(builder.build()))
    assert {(point.operator, point.phase) for point in found.points} == {
        ("aten::item", "forward"),
        ("aten::item", "other"),
    }


def test_a_second_read_finds_an_empty_queue() -> None:
    builder = TraceBuilder().step(1, 0, 1000).launch("a", call_us=0, call_duration_us=5, start_us=10, duration_us=490)
    for at, wait_us in ((100, 400), (520, 2)):
        builder.op("aten::item", at, wait_us + 4).runtime("cudaStreamSynchronize", at + 2, wait_us)
    trace = builder.launch("b", call_us=795, call_duration_us=5, start_us=802, duration_us=190).build()
    found = known(sync_points(trace))
    # One wait, from which on the device idles until b, 524 to 802, and after it.
    (point,) = found.points
    assert (point.calls, point.wait_ns, point.drained_ns, point.regained_ns) == (1, 402_000, 278_000, 286_000)


US = 1000


def training(*, flag_us: int = 100, marked: bool = True, device: bool = False, batches: int = 1) -> TraceBuilder:
    """Three steps of 1000 µs; each ends with a broadcast that is read at once, `flag_us` from begin to end."""
    builder = TraceBuilder()
    if device:
        builder.gpu("NVIDIA A100-SXM4-40GB")
    for at in builder.steps(3, 1000):
        for batch in range(batches):
            begin = at + batch * 1000 // batches
            length = 1000 // batches - flag_us
            if marked:
                builder.annotation("perf::forward", begin, length - 10)
            builder.op("aten::mm", begin + 10, 50)
            # Inside of a phase a broadcast is the model's own: its buffers, which nobody reads.
            builder.op("c10d::broadcast_", begin + 70, 10)
            builder.op("aten::item", begin + 90, 10)
            builder.op("c10d::broadcast_", begin + length, 20)
            builder.op("aten::item", begin + length + flag_us - 5, 5)
        if device:  # runs on for 40 µs of the wait
            builder.launch("gemm", call_us=at + 10, call_duration_us=5, start_us=at + 20, duration_us=920)
    return builder


WITH_OTHER_WORK = (
    TraceBuilder()
    .step(0, 0, 1000)
    .annotation("perf::forward", 0, 500)
    .op("c10d::broadcast_", 600, 20)
    .op("aten::add", 630, 5)
    .op("aten::item", 640, 5)
)


@pytest.mark.parametrize(
    ("recorded", "found"),
    [
        (training(), StopFlags(3, 3, 300 * US, 300 * US)),
        (training(batches=2), StopFlags(3, 6, 600 * US, 600 * US)),
        (training(device=True), StopFlags(3, 3, 300 * US, 3 * 60 * US)),  # device work hides it
        (training(marked=False), None),  # without our marks nothing is said to be Lightning's
        (WITH_OTHER_WORK, None),
    ],
)
def test_a_broadcast_that_is_read_at_once_between_two_batches(recorded: TraceBuilder, found: StopFlags | None) -> None:
    assert stop_flags(recorded.build()) == found


@pytest.mark.parametrize(("flag_us", "found"), [(100, True), (31, True), (28, False)])
def test_the_finding(flag_us: int, found: bool) -> None:
    finding = find_stop_flags(analyze_rank(training(flag_us=flag_us).build()))
    assert (finding is not None) is found
    if finding is not None:
        assert finding.kind == "stop-flags"
        assert (finding.saving_low_ms, finding.saving_high_ms) == pytest.approx((flag_us / 2000, flag_us / 1000))
        assert "once per step" in finding.title


def recorded() -> TraceBuilder:
    """Three steps of 20 ms: a fetch with 2 ms of Python, 5 ms of Python in forward (once 9), 3 ms between batches."""
    builder = TraceBuilder()
    for number, start in enumerate(builder.steps(3, 20_000)):
        forward = 9_000 if number == 2 else 5_000
        builder.annotation(FETCH, start, 3_000).op("aten::stack", start, 1_000)
        builder.annotation("perf::fetch", start, 3_000).annotation("perf::forward", start + 3_000, 14_000)
        builder.op("aten::mm", start + 3_000 + forward, 14_000 - forward)
        builder.host("python_function", "torch/nn/module.py(1): __call__", start + 3_000, 14_000)
        builder.host("python_function", "train.py(20): training_step", start + 3_000, 14_000)
        builder.host("python_function", "torch/nn/module.py(9): forward", start + 3_000, 6_000)
        builder.host("python_function", "net.py(7): forward", start + 3_000, 5_500)
        builder.host("python_function", "<built-in function sleep>", start + 3_000, 5_000)
    return builder


def test_pauses_by_phase() -> None:
    found = known(pauses(recorded().build()))
    forward = known(found.phase("forward"))
    assert forward == PhasePause(
        "forward", forward.mean_ns, 5e6, 5_000_000, "net.py(7): forward", "aten::stack", "aten::mm"
    )
    assert forward.mean_ns == pytest.approx(19e6 / 3)
    assert found.phase("other") == PhasePause("other", 3e6, 3e6, 3_000_000, None, "aten::mm", "aten::stack")
    assert found.phase("fetch") == PhasePause("fetch", 2e6, 2e6, 2_000_000, None, "aten::stack", "aten::mm")
    assert [pause.phase for pause in found.phases] == ["forward", "other", "fetch"]
    assert found.phase("backward") is None


def test_a_stretch_is_cut_at_phases_and_short_pieces_do_not_count() -> None:
    builder = TraceBuilder()
    for start in builder.steps(3, 10_000):
        builder.op("aten::mm", start, 5_000).annotation("perf::forward", start, 5_600)
        builder.annotation("perf::backward", start + 5_600, 2_400).op("aten::mm", start + 8_000, 2_000)
    found = known(pauses(builder.build()))
    assert [(pause.phase, pause.median_ns) for pause in found.phases] == [("backward", 2_400_000)]


def test_a_collection_is_named_like_a_function() -> None:
    builder = recorded()
    for start in (0, 20_000, 40_000):
        builder.host("python_function", "Python GC", start + 3_100, 4_000)
    forward = known(known(pauses(builder.build())).phase("forward"))
    assert forward.function == "Python GC"


def test_runtime_calls_are_no_pauses() -> None:
    builder = TraceBuilder()
    for start in builder.steps(3, 10_000):
        builder.op("aten::mm", start, 2_000).runtime("cudaStreamSynchronize", start + 2_000, 8_000)
    found = known(pauses(builder.build()))
    assert found.phases == ()


USERS = (
    "train.py(20): step",
    "src/train.py(20): step",
    "/home/ada/src/train.py(20): step",
    "C:/work/train.py(2): step",
)
LIBRARIES = (
    "torch/nn/modules/module.py(9): forward",
    "/venv/lib/python3.11/site-packages/timm/layers/norm.py(9): forward",
    "/opt/homebrew/lib/python3.12/threading.py(3): run",
    "C:/venv/Lib/site-packages/timm/layers/norm.py(9): forward",
    "C:/Users/ada/AppData/Local/Programs/Python/Python311/Lib/threading.py(3): run",
)


@pytest.mark.parametrize("separator", ["/", "\\"])
@pytest.mark.parametrize(("names", "users"), [(USERS, True), (LIBRARIES, False)], ids=["users", "libraries"])
def test_the_separator_of_paths_does_not_matter(names, users, separator):
    assert [is_user_function(name.replace("/", separator)) for name in names] == [users] * len(names)
