"""Pauses, and which Python functions of a recording are the user's own, on Linux, macOS and Windows."""

import pytest

from lightning_perf.analysis.host.waits import PhasePause, is_user_function, pauses
from tests.support.known import known
from tests.support.trace_builder import FETCH, TraceBuilder


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
