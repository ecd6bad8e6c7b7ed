"""The format of each file, byte for byte."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.analysis.precision.scales import judge_drift, summarize_loss_scale, tabulate_underflow
from lightning_perf.errors import TraceError
from lightning_perf.run_files import journal
from lightning_perf.run_files.captures import CAPTURES, WINDOWS, CaptureRecord, CaptureTrigger, RecordedWindow, Slowdown
from lightning_perf.run_files.jsonl import RankLog
from lightning_perf.run_files.numerics.precision import (
    Fp32Arithmetic,
    NumericsDrift,
    PrecisionSetting,
    RunPrecision,
    read_precision,
    write_precision,
)
from lightning_perf.run_files.numerics.samples import (
    GRADIENT_SAMPLES,
    SCALE_EVENTS,
    GradientSample,
    LayerGradients,
    NonFinite,
    ScaleEvent,
)
from lightning_perf.run_files.probe import Probe, ProbedCall, ProbedChange, read_probe, write_probe
from lightning_perf.run_files.run_record import (
    RUN_RECORD,
    EpochEnded,
    FactsAdded,
    HealthSeen,
    Line,
    Outcome,
    Place,
    RunEnded,
    RunStarted,
)

LOGS: dict[str, tuple[RankLog[Any], str, list[Any], bytes]] = {
    "windows.rank3.jsonl": (
        WINDOWS,
        "record of a profiler window",
        [RecordedWindow("", 10, 17, 5, 1000, 2000, 3000), RecordedWindow("slow-step-80", 80, 83, 3, 4, 5, 6)],
        (
            b'{"capture":"","first_step":10,"last_step":17,"recorded_steps":5,"pause_ns":1000,"export_ns":2000,'
            b'"trace_bytes":3000}\n'
            b'{"capture":"slow-step-80","first_step":80,"last_step":83,"recorded_steps":3,"pause_ns":4,"export_ns":5,'
            b'"trace_bytes":6}\n'
        ),
    ),
    "captures.rank3.jsonl": (
        CAPTURES,
        "record of a capture",
        [
            CaptureRecord("slow-step-12", CaptureTrigger.SLOW_STEPS, 11, Slowdown(100, 125, (200, 210, 220))),
            CaptureRecord("on-demand-40", CaptureTrigger.SIGNAL, 39),
        ],
        (
            b'{"folder":"slow-step-12","trigger":"slow steps","step":11,"slowdown":{"usual_ns":100,"limit_ns":125,'
            b'"step_ns":[200,210,220]}}\n'
            b'{"folder":"on-demand-40","trigger":"signal","step":39,"slowdown":null}\n'
        ),
    ),
    "loss_scale.rank3.jsonl": (
        SCALE_EVENTS,
        "loss-scale event",
        [
            ScaleEvent("start", 0, 65536.0, 0, 0),
            ScaleEvent("overflow", 3, 32768.0, 4, 400, 100, 1, NonFinite("mm", "fc", "a:1", False, "inf", "half")),
            ScaleEvent("end", 9, 32768.0, 10, 1000),
        ],
        (
            b'{"kind":"start","step":0,"scale":65536.0,"attempts":0,"trained_ns":0,"wasted_ns":0,'
            b'"scheduler_steps":0,"origin":null}\n'
            b'{"kind":"overflow","step":3,"scale":32768.0,"attempts":4,"trained_ns":400,"wasted_ns":100,'
            b'"scheduler_steps":1,"origin":{"operator":"mm","layer":"fc","line":"a:1",'
            b'"backward":false,"value":"inf","dtype":"half","largest_input":null}}\n'
            b'{"kind":"end","step":9,"scale":32768.0,"attempts":10,"trained_ns":1000,"wasted_ns":0,'
            b'"scheduler_steps":0,"origin":null}\n'
        ),
    ),
    "underflow.rank3.jsonl": (
        GRADIENT_SAMPLES,
        "gradient sample",
        [
            GradientSample(100, 1024.0, {"fc": LayerGradients("fp16", 3, 0, -16, (60, 40))}, {}),
            GradientSample(
                200,
                512.0,
                {"fc": LayerGradients("unknown", 5, 1, 0, ())},
                {"fc": LayerGradients("fp16", 0, 0, -30, (2,))},
            ),
        ],
        (
            b'{"step":100,"scale":1024.0,"layers":{"fc":{"arithmetic":"fp16","zeros":3,"nonfinite":0,'
            b'"first_exponent":-16,"counts":[60,40]}},"hidden":{}}\n'
            b'{"step":200,"scale":512.0,"layers":{"fc":{"arithmetic":"unknown","zeros":5,"nonfinite":1,'
            b'"first_exponent":0,"counts":[]}},"hidden":{"fc":{"arithmetic":"fp16","zeros":0,"nonfinite":0,'
            b'"first_exponent":-30,"counts":[2]}}}\n'
        ),
    ),
}
RECORD: list[Line] = [
    RunStarted(
        "20261122-1", 7.5, {"x": 1, "y": None}, {"host": "h"}, Place("s1", "amp", 2, 1, treatment=("precision",))
    ),
    FactsAdded({"y": "late"}),
    EpochEnded(0, 2.5, 10, {"val_acc": 0.5, "loss": None}),
    HealthSeen("throttled", 3.0),
    RunEnded(Outcome.FINISHED, 5.0, None, 7, 8),
]
RECORD_CONTENT = (
    b'{"type":"started","run_id":"20261122-1","started_unix_s":7.5,"facts":{"x":1,"y":null},"notes":{"host":"h"},'
    b'"place":{"study":"s1","arm":"amp","block":2,"position":1,"attempt":0,"treatment":["precision"]},"version":1}\n'
    b'{"type":"facts","facts":{"y":"late"}}\n'
    b'{"type":"epoch","epoch":0,"train_time_s":2.5,"steps":10,"metrics":{"val_acc":0.5,"loss":null},'
    b'"higher_is_better":{}}\n'
    b'{"type":"health","problem":"throttled","train_time_s":3.0,"invalid":true}\n'
    b'{"type":"ended","outcome":"finished","train_time_s":5.0,"error":null,"peak_device_bytes":7,'
    b'"peak_host_bytes":8,"other_cpu_share":null,"cpu_throttled_share":null}\n'
)
JOURNAL: list[journal.Entry] = [
    journal.RunBegan("a", 0, "runs/1", "cpu"),
    journal.RunOver("a", 0, 1.5, None, "c1"),
    journal.Lost("its driver died"),
    journal.Again(),
    journal.BlockOver(True),
]
JOURNAL_CONTENT = (
    b'\n{"type":"run began","arm":"a","attempt":0,"folder":"runs/1","device":"cpu","unix_s":7.5}\n'
    b'\n{"type":"run over","arm":"a","attempt":0,"seconds":1.5,"problem":null,"revision":"c1","invalid":false}\n'
    b'\n{"type":"lost","problem":"its driver died"}\n'
    b'\n{"type":"again"}\n'
    b'\n{"type":"block over","done":true,"problem":null}\n'
)
PRECISION_CONTENT = (
    b'{"setting":{"precision":"16-mixed","requested":"16-mixed","switched":true,"weight_cache":true,'
    b'"keep_fp32":["fc"],"fp32":{"device_has_tf32":true,"tf32_matmul":false,"tf32_convolution":true},'
    b'"note":"a note"},"loss_scale":{"attempts":10,"skipped_steps":0,'
    b'"scheduler_steps_on_skips":0,"trained_ns":1000,"wasted_ns":0,"finished":true,"events":[{"kind":"start",'
    b'"step":0,"scale":65536.0,"attempts":0,"trained_ns":0,"wasted_ns":0,"scheduler_steps":0,'
    b'"origin":null},{"kind":"end","step":9,"scale":65536.0,"attempts":10,'
    b'"trained_ns":1000,"wasted_ns":0,"scheduler_steps":0,"origin":null}]},'
    b'"underflow":{"samples":1,"scale":1024.0,"headroom_doublings":30,"layers":[{"name":"fc","arithmetic":"fp16",'
    b'"values":100,"zero_share":0.0,"subnormal_share":1.0,"vanished":null,"median_exponent":-16,'
    b'"headroom_doublings":30,"underflows":true,"first_exponent":-16,"counts":[60,40]}],"advice":{'
    b'"action":"init_scale","text":"Start with a larger loss scale that fits all sampled gradients: '
    b'PrecisionCallback(\\"16-mixed\\", init_scale=4096)","init_scale":4096.0,"keep_fp32":[]}},"numerics":{'
    b'"precision":"16-mixed","mixed_losses":[2.5],"fp32_losses":[2.25],"mixed_end":2.5,"fp32_end":2.0,'
    b'"seed_ends":[2.0,2.0,2.0,2.0],"expected_low":2.0,"expected_high":2.0,"beyond_seed_noise":true},'
    b'"mistakes":[],"bad_run":null}'
)


@pytest.mark.parametrize("name", LOGS)
def test_a_log_is_written_and_read_as_before_also_that_of_a_killed_and_of_a_resumed_run(
    tmp_path: Path, name: str
) -> None:
    log, what, values, content = LOGS[name]
    path = log.path(tmp_path, 3)
    for value in values:
        log.append(path, value)
    assert log.paths(tmp_path) == [path] == [tmp_path / name]
    assert path.read_bytes() == content
    assert log.read(path) == tuple(values)
    path.write_bytes(content[:-9])
    assert log.read(path) == tuple(values[:-1])
    log.append(path, values[0])
    log.append(path, values[-1])
    assert log.read(path) == (*values[:-1], values[0], values[-1])
    path.write_bytes(content + b'{"step":"melt"}\n' + content)
    with pytest.raises(TraceError, match=rf"{name}: line {len(values) + 1} is no {what}"):
        log.read(path)


def test_a_run_record_is_written_and_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for line in RECORD:
        RUN_RECORD.append(path, line)
    assert path.read_bytes() == RECORD_CONTENT
    assert RUN_RECORD.read(path) == tuple(RECORD)
    path.write_bytes(RECORD_CONTENT[:-9])
    assert RUN_RECORD.read(path) == tuple(RECORD[:-1])


def test_a_journal_is_written_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 7.5)
    for entry in JOURNAL:
        journal.append(tmp_path, 1, entry)
    assert (tmp_path / "blocks" / "block001.jsonl").read_bytes() == JOURNAL_CONTENT
    assert journal.read_block(tmp_path, 1).done


def drift(mixed: list[float], fp32: list[float], end: float, seeds: list[float]) -> NumericsDrift:
    return judge_drift(
        precision="16-mixed", mixed_losses=mixed, fp32_losses=fp32, mixed_end=end, fp32_end=2.0, seed_ends=seeds
    )


def test_precision_is_written_and_read_as_before(tmp_path: Path) -> None:
    precision = RunPrecision(
        PrecisionSetting("16-mixed", "16-mixed", True, True, ("fc",), Fp32Arithmetic(True, False, True), "a note"),
        summarize_loss_scale([ScaleEvent("start", 0, 65536.0, 0, 0), ScaleEvent("end", 9, 65536.0, 10, 1000)]),
        tabulate_underflow([GradientSample(0, 1024.0, {"fc": LayerGradients("fp16", 0, 0, -16, (60, 40))}, {})]),
        drift([2.5], [2.25], 2.5, [2.0] * 4),
    )
    write_precision(tmp_path, precision)
    assert (tmp_path / "precision.json").read_bytes() == PRECISION_CONTENT
    assert read_precision(tmp_path / "precision.json") == precision


def test_a_probe_is_written_and_read(tmp_path: Path) -> None:
    change = ProbedChange("bf16", "bf16-mixed", 5.0, 4.0, 6.0, 0.5, 80.0, 7)
    call = ProbedCall("conv2d", "[[1]]", 2.0, 60.0, 30.0, {"bf16": 20.0})
    probe = Probe("A CPU", 0, ("rank0.json",), 100.0, 90.0, 80.0, 4.5, (change,), (call,), {"my::op": "why"})
    write_probe(tmp_path, probe)
    assert read_probe(tmp_path / "probe.json") == probe
    assert (probe.change("bf16"), probe.change("tf32")) == (change, None)


@pytest.mark.parametrize(
    ("read", "problem"),
    [(read_precision, "is no description of a run's precision"), (read_probe, "is not the result of a probe")],
)
def test_a_missing_or_damaged_file_is_named(tmp_path: Path, read: Callable[[Path], Any], problem: str) -> None:
    path = tmp_path / "some.json"
    with pytest.raises(TraceError, match="cannot be read"):
        read(path)
    for content in (b"", b"{}", b"[1]", b'{"device": 3, "setting": 1}', b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(TraceError, match=f"{problem}.*Remove it"):
            read(path)


@pytest.mark.parametrize(
    ("device", "matmul", "convolution", "text"),
    [
        (False, True, True, "FP32 is true FP32 (the device has no TF32)"),
        (True, True, True, "FP32 is TF32"),
        (True, False, False, "FP32 is true FP32"),
        (True, False, True, "FP32 is TF32 in convolutions and true FP32 in matrix products"),
        (True, True, False, "FP32 is TF32 in matrix products and true FP32 in convolutions"),
    ],
)
def test_the_name_of_fp32(device: bool, matmul: bool, convolution: bool, text: str) -> None:
    assert str(Fp32Arithmetic(device_has_tf32=device, tf32_matmul=matmul, tf32_convolution=convolution)) == text


def test_diverged_losses_are_read_back(tmp_path: Path) -> None:
    setting = PrecisionSetting("16-mixed", None, False, True, (), Fp32Arithmetic(True, False, True))
    nan, inf = float("nan"), float("inf")
    found = drift([2.5, nan], [2.5, inf], nan, [2.0, 2.1, inf, 2.0])
    assert found.mixed_losses == (2.5, None)
    assert (found.mixed_end, found.expected_low) == (None, None)
    precision = RunPrecision(setting, numerics=found)
    write_precision(tmp_path, precision)
    assert read_precision(tmp_path / "precision.json") == precision
