"""What holds for every analysis of a trace: odd recordings, the order of events, the origin of time, JSON.

The analyses are the fields of `RankAnalysis`, so that one added there is tested here without being listed.
"""

import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from lightning_perf.analysis.rank import RankAnalysis, analyze_rank
from lightning_perf.trace.description import TOKENS_KEY
from tests.findings.host_recordings import convolving, on_processor
from tests.support.trace_builder import FETCH, TraceBuilder

DESCRIPTIONS = {"rank", "sources", "metadata", "problems", "recording_ns", "probe", "worker", "link", "usual"}
"""Fields that repeat what the recording says of itself, or that others set."""

SECTIONS = sorted(set(RankAnalysis.__struct_fields__) - DESCRIPTIONS)

NOTHING_SENT: dict[str, Any] = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 0, "Group size": 0}

SMALLEST = {
    "an allocation": lambda: TraceBuilder().memory(5, 10, allocated=10, reserved=20),
    "a freed block": lambda: TraceBuilder().memory(5, -10),
    "a kernel of no length": lambda: TraceBuilder().kernel("k", 5, 0, 1),
    "a collective of no length": lambda: TraceBuilder().kernel("ncclAllReduce", 5, 0, 1, **NOTHING_SENT),
    "a module of no length": lambda: TraceBuilder().python("nn.Module: A_0", 5, 0),
    "an operator of no length": lambda: TraceBuilder().op("aten::mm", 5, 0),
    "a step of no length": lambda: TraceBuilder().step(1, 5, 0).kernel("k", 5, 0, 1).op("aten::mm", 5, 0),
    "a launch of nothing": lambda: TraceBuilder().runtime("cudaLaunchKernel", 0, 5, 1),
    "an empty step": lambda: TraceBuilder().step(1, 0, 10),
    "strange occupancy": lambda: TraceBuilder().kernel("k", 5, 3, 1, **{"est. achieved occupancy %": -5}),
    "work outside of the step": lambda: TraceBuilder().step(1, 0, 10).op("aten::mm", 2, 3).kernel("k", 50, 5, 1),
}


@pytest.mark.parametrize("by_shape", [False, True])
@pytest.mark.parametrize("name", SMALLEST)
def test_smallest_recordings(name, by_shape):
    analysis = analyze_rank(SMALLEST[name]().build(), by_shape=by_shape)
    assert msgspec.json.decode(msgspec.json.encode(analysis), type=RankAnalysis) == analysis


def on_device(origin_us: int = 0) -> TraceBuilder:
    """Three steps of a training on two ranks, with all that the analyses of device work look at."""
    tokens = {"parameters": 100, "steps": 3, "tokens": 96, "counted": 96, "padding": 24, "beyond_longest": 8}
    builder = TraceBuilder(**{TOKENS_KEY: tokens}).gpu("GPU", totalGlobalMem=10_000)
    for n in range(3):
        at = origin_us + 1000 * n
        builder.step(n, at, 1000)
        builder.annotation(FETCH, at, 100)
        builder.python("nn.Module: Net_0", at + 110, 300)
        builder.op("aten::linear", at + 120, 100, dims=[[8, n]], sequence=n)
        builder.op("aten::addmm", at + 130, 80, types=["float"], sequence=n)
        builder.memory(at + 135, 512, address=n + 1, allocated=1024 + 512 * n, reserved=4096)
        builder.launch("gemm", call_us=at + 140, call_duration_us=10, start_us=at + 160, duration_us=200)
        builder.launch(
            "ncclAllReduce", call_us=at + 155, call_duration_us=5, start_us=at + 300, duration_us=150, stream=9
        )
        builder.op("AddmmBackward0", at + 500, 100, sequence=n, forward_thread=1, thread=2000)
        builder.launch("gemm", call_us=at + 510, call_duration_us=10, start_us=at + 530, duration_us=90, thread=2000)
        builder.op("aten::_scaled_dot_product_flash_attention", at + 222, 5, dims=[[1, 1, 2, 2]] * 3)
        builder.op("aten::relu", at + 560, 21, sequence=50 + n, thread=2000)
        builder.runtime("cudaStreamSynchronize", at + 600, 100)
        builder.annotation("DistributedDataParallel.forward", at + 110, 300)
        builder.annotation("perf::fetch", at, 102).annotation("perf::forward", at + 105, 320)
        builder.annotation("Optimizer.step#SGD.step", at + 720, 100).op("aten::add_", at + 730, 40)
        builder.launch("update", call_us=at + 740, call_duration_us=5, start_us=at + 738, duration_us=10)
        named = {"graph node id": 1, "name": "head", "device": 0, "stream": 7}
        builder.event(ph="X", cat="kernel", name="graphed", pid=0, tid=7, ts=at + 850, dur=10, args=named)
        builder.event(ph="C", name="Power (W)", pid="GPU 0 Counters", ts=at + 400, args={"": 350.0 + n})
        builder.op("c10d::broadcast_", at + 900, 20).op("aten::item", at + 930, 30)
    return builder


def on_host(origin_us: int = 0) -> TraceBuilder:
    """Three steps of a training on the processor, with a compiled function on another thread."""
    builder = convolving(on_processor(), origin_us=origin_us)
    builder.op("TorchDynamo Cache Lookup", origin_us + 20, 7, thread=2000)
    builder.op("autograd::engine::evaluate_function: MulBackward0", origin_us + 50, 20, thread=2000)
    builder.op("aten::isnan", origin_us + 60, 5, thread=2000)
    return builder.op("Torch-Compiled Region: 0/0", origin_us + 30, 13, thread=2000)


TRAININGS = {"device": on_device, "host": on_host}


@pytest.mark.parametrize("section", SECTIONS)
def test_each_section_is_found_in_a_training(section):
    found = [getattr(analyze_rank(training().build()), section) for training in TRAININGS.values()]
    assert any(found)


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("by_shape", [False, True])
def test_every_section_survives_json(training, by_shape):
    analysis = analyze_rank(TRAININGS[training]().build(), by_shape=by_shape)
    assert msgspec.json.decode(msgspec.json.encode(analysis), type=RankAnalysis) == analysis


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("by_shape", [False, True])
def test_order_of_events_and_origin_of_time_do_not_matter(training, by_shape):
    def analysis(recording: TraceBuilder) -> RankAnalysis:
        # The clocks hold the origin itself.
        return replace(analyze_rank(recording.build(), by_shape=by_shape), sources=(), clocks=())

    expected = analysis(TRAININGS[training]())
    shuffled = TRAININGS[training]()
    random.Random(1).shuffle(shuffled.events)
    assert analysis(shuffled) == expected
    assert analysis(TRAININGS[training](origin_us=123_456_789)) == expected


def outlasting(recording: TraceBuilder, event: int, last_us: int, end_us: int) -> RankAnalysis:
    """Analyze a recording in which one event of the last step lasts until `end_us`."""
    recording.events[event]["dur"] = end_us - recording.events[event]["ts"]
    recording.op("aten::later", last_us, 1, thread=9)  # both recordings end here
    return replace(analyze_rank(recording.build()), sources=())


@pytest.mark.parametrize("training", TRAININGS)
def test_the_tail_of_a_range_beyond_the_last_step_changes_no_figure(training):
    # Lightning's PyTorchProfiler ends its last step inside the closure of the optimizer's step, for example.
    steps = [event for event in TRAININGS[training]().events if str(event.get("name")).startswith("ProfilerStep#")]
    start_us, end_us = steps[-1]["ts"], steps[-1]["ts"] + steps[-1]["dur"]
    tails = 0
    for place, event in enumerate(TRAININGS[training]().events):
        on_host = event.get("cat") in ("cpu_op", "user_annotation", "cuda_runtime", "python_function")
        if not on_host or not start_us <= event["ts"] < end_us or event["name"].startswith("ProfilerStep#"):
            continue
        cut, long = (outlasting(TRAININGS[training](), place, 10 * end_us, at) for at in (end_us, 9 * end_us))
        differing = [name for name in SECTIONS if getattr(cut, name) != getattr(long, name)]
        assert not differing, event["name"]
        tails += 1
    assert tails > 5


OF_A_DEVICE = {"amp_gain", "arithmetic", "efficiency", "host_pace", "idle", "kernels", "launches", "sync_points"}
OF_OPERATORS = {"autocast", "call_tree", "host_compute", "operators", "pauses"}
OF_MORE = {
    "anomaly_checks", "attention", "clock_skew", "communication", "compiled_calls", "counters", "graph_regions",
    "language_model", "link", "loading", "memory", "modules", "optimizer", "probe", "rank", "recompute", "stop_flags",
    "usual", "worker",
}  # fmt: skip


@pytest.mark.parametrize(
    ("recorded", "missing"),
    [
        (TraceBuilder().step(1, 0, 100).op("aten::mm", 0, 90), OF_A_DEVICE),
        (TraceBuilder().step(1, 0, 100).kernel("gemm", 0, 5, 1), OF_OPERATORS),
        (TraceBuilder().step(1, 0, 100), OF_A_DEVICE | OF_OPERATORS),
    ],
)
def test_sections_that_a_recording_cannot_support_are_missing(recorded, missing):
    analysis = analyze_rank(recorded.build())
    assert {name for name in analysis.__struct_fields__ if getattr(analysis, name) is None} == missing | OF_MORE
    assert analysis.recording_ns == 100_000
