"""Reports of recordings that lack something: what was not recorded is unknown, never zero and nobody's fault."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.errors import TraceError
from lightning_perf.report.build import analyze
from lightning_perf.report.document import PerfReport
from lightning_perf.trace.reader import read_trace
from tests.report.support import rendered
from tests.support.trace_builder import PID, TraceBuilder


def report(builder: TraceBuilder, folder: Path) -> PerfReport:
    return analyze(builder.write(folder / "trace.json"))


def gpu_run(**top_level: Any) -> TraceBuilder:
    """A host that launches and waits, on a machine with a GPU, without any work of the GPU."""
    builder = TraceBuilder(**top_level).gpu("NVIDIA A100")
    for at in range(0, 20_000, 1000):
        builder.op("aten::mm", at, 400)
        builder.runtime("cudaLaunchKernel", at + 100, 250, at + 1).runtime("cudaDeviceSynchronize", at + 450, 500)
    return builder


@pytest.mark.parametrize("marked", [False, True])
def test_the_state_of_a_device_that_was_not_recorded_is_unknown(tmp_path, marked):
    builder = gpu_run()
    found = report(builder.step(1, 0, 20_000) if marked else builder, tmp_path)
    assert found.verdict.why == "The device was not recorded, so its state is unknown."
    assert "idle" not in found.verdict.where
    assert "nothing to do" not in found.verdict.where
    assert "waits in synchronizing calls" in found.verdict.where
    assert any("activities= of the profiler lacks the device" in note for note in found.notes)


@pytest.mark.parametrize("name", ["Activity Buffer Request", "Buffer Flush", "Instrumentation"])
def test_events_of_the_recorder_show_that_the_device_was_asked_for(tmp_path, name):
    builder = gpu_run(cupti_version=22)
    builder.event(ph="X", cat="overhead", name=name, pid=-1, tid=0, ts=0, dur=1500)
    (note,) = (note for note in report(builder, tmp_path).notes if "no device work" in note)
    assert "the driver delivered nothing" in note
    assert "activities=" not in note


UNREAD: dict[str, tuple[dict[str, Any], str]] = {
    "torch_npu": ({"pid": 3}, "Ascend Hardware"),
    "a process without a name": ({"pid": 77}, "process 77"),
    "MTIA": ({"pid": 3, "cat": "mtia_ccp_events"}, "mtia_ccp_events"),
    "a maker's own category": ({"pid": 3, "cat": "NPU_Kernel"}, "npu_kernel"),
}


def host_run() -> TraceBuilder:
    builder = TraceBuilder().event(ph="M", name="process_name", pid=3, tid=0, args={"name": "Ascend Hardware"})
    for at in builder.steps(3, 1000):
        builder.op("aten::mm", at + 50, 20)
    return builder


@pytest.mark.parametrize("kind", UNREAD)
def test_device_work_of_no_known_category_is_counted_and_named(tmp_path, kind):
    fields, name = UNREAD[kind]
    builder = host_run()
    for at in range(100, 900, 200):
        builder.event(ph="X", name="MatMulV2", tid=7, ts=at, dur=180, **fields)
    found = report(builder, tmp_path)
    assert found.verdict.where == "A step takes 1.00 ms (mean of 3)."
    assert found.verdict.why.startswith(f"4 events in {name} are of no known category.")
    assert any("holds 4 events of no known category" in note and name in note for note in found.notes)
    assert found.ranks[0].breakdown.category("host_other").share is None
    assert found.trust is not None
    assert not found.trust.sound
    assert not found.findings


@pytest.mark.parametrize("category", ["", "my_tool", "Trace", "gpu_user_annotation", "cuda_sync", "overhead"])
def test_marks_on_the_host_and_events_about_other_events_withhold_nothing(tmp_path, category):
    pid = PID if category in ("", "my_tool") else "Spans"
    found = report(host_run().event(ph="X", cat=category, name="mine", pid=pid, tid=0, ts=0, dur=3000), tmp_path)
    assert found.ranks[0].problems.unread_events == 0
    assert found.ranks[0].breakdown.category("host_other").share is not None


def test_known_device_work_beside_unknown_events_is_shown(tmp_path):
    builder = host_run().kernel("gemm", 100, 50).event(ph="X", name="x", pid=3, tid=0, ts=0, dur=10)
    assert report(builder, tmp_path).ranks[0].breakdown.category("device_compute").share is not None


def device_run(**kernel: Any) -> TraceBuilder:
    """A recording of the device alone: five steps of launches and kernels, without operators."""
    builder = TraceBuilder().gpu("NVIDIA A100")
    for at in builder.steps(5, 5000):
        for k in range(10):
            builder.launch(
                "gemm", call_us=at + 400 * k + 10, call_duration_us=8, start_us=at + 400 * k + 30, duration_us=100,
                **kernel,
            )  # fmt: skip
    return builder


def test_without_operators_nothing_is_said_about_python(tmp_path):
    found = report(device_run(), tmp_path)
    assert not found.findings
    text = rendered(found)
    assert "Python" not in text
    assert "the host without recorded operators" in found.verdict.where
    assert "On Tensor Cores" not in text


@pytest.mark.parametrize(("recorded", "blocks", "shown"), [(0, 2, None), (0, 0.01, 0.0), (40, 2, 0.4)])
def test_an_occupancy_of_zero_is_unknown_for_a_kernel_of_many_blocks(tmp_path, recorded, blocks, shown):
    facts = {"est. achieved occupancy %": recorded, "blocks per SM": blocks}
    found = report(device_run(**facts), tmp_path).ranks[0]
    assert found.efficiency is not None
    assert found.efficiency.devices[0].occupancy == pytest.approx(shown)


@pytest.mark.parametrize(
    "document",
    [
        [{"ph": "X", "name": "f", "cat": "FEE", "pid": 1, "tid": 1, "ts": 1, "dur": 2}],
        {"traceEvents": [{"ph": "X", "name": "f", "cat": "toplevel", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]},
        [1, 2, 3],
    ],
    ids=["a list", "an object", "numbers"],
)
def test_a_file_of_another_tool_is_no_empty_schedule(tmp_path, document):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TraceError, match="another tool"):
        read_trace(path)


def test_an_empty_recording_of_torch_is_an_empty_schedule(tmp_path):
    with pytest.raises(TraceError, match="schedule may have ended"):
        read_trace(TraceBuilder().write(tmp_path / "trace.json"))


def test_more_recordings_than_ranks(tmp_path):
    for number in range(3):
        TraceBuilder().rank(number % 2, 2).step(1, 0, 100).op("aten::mm", 0, 90).write(
            tmp_path / f"{number}.pt.trace.json"
        )
    assert "3 recordings of 2 ranks" in rendered(analyze(tmp_path))
