"""Recordings of different trainings are not called faster or slower."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import lightning_perf
from lightning_perf.analysis.diff import DiffTable
from lightning_perf.analysis.steps.step_times import summarize_step_times
from lightning_perf.cli import main
from lightning_perf.report.compared import Compared
from lightning_perf.report.document import PerfReport
from lightning_perf.report.sections.diff import changes_table
from lightning_perf.run_files.steps import StepSample
from lightning_perf.trace.description import LOADER_KEY
from tests.report.support import rendered
from tests.support.shown import console_text
from tests.support.trace_builder import FETCH, TraceBuilder


def recording(kernel_us: int, extra: str) -> TraceBuilder:
    return (
        TraceBuilder()
        .step(1, 0, 200)
        .op("aten::mm", 5, 30)
        .launch("gemm", call_us=10, call_duration_us=5, start_us=20, duration_us=kernel_us)
        .launch(extra, call_us=20, call_duration_us=5, start_us=150, duration_us=10)
    )


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    before = recording(100, "[red]old\x1b[31m").write(tmp_path / "before.json")
    return before, recording(40, "new").write(tmp_path / "after.json")


def test_changes_are_the_differences(paths: tuple[Path, Path]) -> None:
    before, after = map(lightning_perf.analyze, paths)
    compared = before.diff(after)
    compute = next(row for row in compared.diff.categories.rows if row.name == "device_compute")
    assert (compute.before_ns, compute.after_ns, compute.verdict) == (110_000, 50_000, "faster")
    assert compared.diff.kernels is not None
    verdicts = {row.name: row.verdict for row in compared.diff.kernels.rows}
    assert verdicts == {"gemm": "faster", "[red]old\x1b[31m": "vanished", "new": "appeared"}


def timed(report: PerfReport, step_us: int) -> PerfReport:
    """The report with steps that take as long without the profiler."""
    samples = [StepSample(step, 1000 * step_us, 0, None, None, False) for step in range(30)]
    return replace(report, step_times=summarize_step_times(samples))


def test_medians_without_the_profiler_lead_if_both_runs_have_them(paths: tuple[Path, Path]) -> None:
    before, after = (timed(lightning_perf.analyze(path), us) for path, us in zip(paths, (180, 90), strict=True))
    compared = before.diff(after)
    assert (compared.step.before_ns, compared.step.after_ns, compared.step.verdict) == (180_000, 90_000, "faster")
    text = " ".join(console_text(compared.blocks()).split())
    assert text.startswith("A step took 180 µs and takes 90.0 µs (median, 0.500×): faster The step time is without the")
    assert "means of 1 and 1 recorded step." in text
    recorded = before.diff(lightning_perf.analyze(paths[1]))
    assert (recorded.usual_step, recorded.step) == (None, recorded.diff.step)
    assert "takes 200 µs (mean, 1.00×): same" in console_text(recorded.blocks())


def test_small_changes_are_not_coloured(paths: tuple[Path, Path]) -> None:
    compared = lightning_perf.analyze(paths[0]).diff(lightning_perf.analyze(paths[1]))
    assert compared.diff.kernels is not None
    for share, style in ((0.009, "quiet"), (0.011, "bad")):
        row = replace(compared.diff.kernels.rows[0], change_ns=share * 1000.0, verdict="slower")
        table = changes_table(DiffTable(1000.0, 1000.0 + row.change_ns, row.change_ns, (row,)), "kernel")
        assert (table.rows[0][-1].text, table.rows[0][-1].style) == ("slower", style)


def test_notes_say_whose_they_are(paths: tuple[Path, Path]) -> None:
    before, after = (replace(lightning_perf.analyze(path), notes=(path.name, "both")) for path in paths)
    compared = before.diff(after)
    assert compared.notes == ("Before: before.json", "both", "After: after.json")
    assert (compared.schema_version, compared.tool_version) == (1, lightning_perf.__version__)


def test_prediction_of_mixed_precision_stands_beside_what_came_of_it(tmp_path: Path) -> None:
    def run(kernel: str, dtype: str, kernel_us: int) -> Path:
        builder = TraceBuilder().step(1, 0, 100 + kernel_us).op("aten::mm", 5, 30, types=[dtype], dims=[[64, 64]])
        builder.launch(kernel, call_us=10, call_duration_us=5, start_us=20, duration_us=kernel_us)
        return builder.write(tmp_path / f"{kernel}.json")

    plain = lightning_perf.analyze(run("volta_sgemm_128x64_nn", "float", 900))
    mixed = lightning_perf.analyze(run("volta_fp16_s884gemm_fp16_128x64", "c10::Half", 300))
    check = plain.diff(mixed).mixed_precision
    assert check is not None
    assert (check.measured, check.held) == (pytest.approx(1000 / 400), True)
    text = rendered(plain.diff(mixed))
    assert "Mixed precision was predicted to be" in text
    assert "It is 2.50×: as predicted." in text
    # The profiler slows down the shorter steps more.
    usual = timed(plain, 990).diff(timed(mixed, 330)).mixed_precision
    assert usual is not None
    assert (usual.measured, usual.predicted) == (pytest.approx(3.0), check.predicted)
    assert plain.diff(plain).mixed_precision is None
    assert mixed.diff(plain).mixed_precision is None


@pytest.mark.parametrize("width", [80, 120])
def test_console_fits_and_is_inert(paths: tuple[Path, Path], width: int) -> None:
    before, after = map(lightning_perf.analyze, paths)
    text = rendered(before.diff(after), width)
    assert max(map(len, text.splitlines())) <= width
    assert "device compute" in text
    assert "−60.0 µs" in text
    assert "\x1b" not in text
    assert r"[red]old\x1b[31m" in text


def test_a_whole_recording_is_not_called_a_step(paths: tuple[Path, Path]) -> None:
    marked, other = map(lightning_perf.analyze, paths)
    (rank,) = other.ranks
    whole = replace(other, ranks=(replace(rank, breakdown=replace(rank.breakdown, marked=False)),))
    assert marked.diff(marked).headline == "A step took 200 µs and takes 200 µs"
    assert whole.diff(whole).headline == "The whole recording took 200 µs and takes 200 µs"
    assert marked.diff(whole).headline == "A step took 200 µs, the whole recording takes 200 µs"


def test_a_truncated_recording_is_refused(paths: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    text = paths[0].read_text()
    paths[0].write_text(text[: len(text) - 200])
    assert main(["diff", *map(str, paths)]) == 2
    assert "before.json: ends early" in capsys.readouterr().err


CONVOLUTIONS = ("aten::convolution", "aten::batch_norm")
TRANSFORMER = ("aten::linear", "aten::layer_norm", "aten::embedding")


def training(
    *,
    step_us: int = 1000,
    device: str = "NVIDIA A100",
    batch: int = 32,
    layers: tuple[str, ...] = CONVOLUTIONS,
    width: int = 64,
    number: int = 3,
    shapes: bool = True,
    micro_batches: int = 1,
    copied: int = 4096,
    optimizer: str = "aten::_foreach_add_",
    kernel: str = "gemm",
    dtype: str = "float",
    marked: bool = True,
    steps: int = 2,
    length: int = 1,
    **top_level: Any,
) -> TraceBuilder:
    """Steps of a training, each layer a kernel."""
    builder = TraceBuilder(**top_level).gpu(device)
    for step in range(steps):
        at = step_us * step
        if marked:
            builder.step(step, at, step_us)
        for micro_batch in range(micro_batches):
            begin = at + micro_batch * (step_us // micro_batches)
            builder.annotation(FETCH, begin, 5)
            builder.runtime("cudaMemcpyAsync", begin + 1, 2, 10_000 + at + micro_batch)
            builder.memcpy("HtoD", begin + 2, 3, 10_000 + at + micro_batch, bytes=copied)
            for at_layer in range(number):
                for name in layers:
                    begin += 10
                    data, weight = [batch, length, width], [width, at_layer + 1]
                    dims = {"aten::embedding": [weight, data], "aten::layer_norm": [data, [], weight]}
                    builder.op(name, begin, 8, dims=dims.get(name, [data, weight]) if shapes else None, types=[dtype])
                    builder.launch(kernel, call_us=begin + 1, call_duration_us=2, start_us=begin + 3, duration_us=6)
        builder.annotation("Optimizer.step#SGD.step", at + step_us - 40, 30)
        builder.op(optimizer, at + step_us - 35, 20)
    return builder


def compared(tmp_path: Path, before: TraceBuilder, after: TraceBuilder) -> Compared:
    first, second = before.write(tmp_path / "before.json"), after.write(tmp_path / "after.json")
    return lightning_perf.analyze(first).diff(lightning_perf.analyze(second))


def stacked(*names: str) -> TraceBuilder:
    """A training whose layers are not recorded, but its modules are."""
    builder = training(layers=())
    for position, name in enumerate(names):
        builder.python(f"nn.Module: {name}_{position}", 50 + 20 * position, 10)
    return builder


LOADER: dict[str, Any] = {LOADER_KEY: {"batch_size": 32}}
LOADER_OF_64: dict[str, Any] = {LOADER_KEY: {"batch_size": 64}}
SLOW = training(step_us=2000)
DEEPER = "3 × convolution, 3 × batch_norm per step", "8 × convolution, 8 × batch_norm per step"


@pytest.mark.parametrize(
    ("first", "second", "aspect", "before", "after"),
    [
        (SLOW, training(device="NVIDIA H100"), "device", "NVIDIA A100", "NVIDIA H100"),
        (
            SLOW,
            training(layers=TRANSFORMER),
            "model",
            "3 × convolution, 3 × batch_norm per step",
            "3 × linear, 3 × embedding, 3 × layer_norm per step",
        ),
        (
            SLOW,
            training(width=96),
            "model",
            "convolution 64×1, convolution 64×2, convolution 64×3 and 3 more",
            "convolution 96×1, convolution 96×2, convolution 96×3 and 3 more",
        ),
        (SLOW, training(number=8), "model", *DEEPER),
        (training(shapes=False), training(shapes=False, number=8), "model", *DEEPER),
        (
            stacked("Conv2d", "Conv2d", "ReLU"),  # modules tell models apart where layers do not
            stacked("Linear", "GELU", "Linear"),
            "model",
            "2 × Conv2d, 1 × ReLU",
            "2 × Linear, 1 × GELU",
        ),
        (SLOW, training(batch=256), "batch", "input 32×1×64", "input 256×1×64"),
        (training(**LOADER), training(length=4, **LOADER), "batch", "input 32×1×64", "input 32×4×64"),
        (training(shapes=False, **LOADER), training(shapes=False, **LOADER_OF_64), "batch", "32", "64"),
        (
            training(shapes=False),
            training(shapes=False, copied=8192),
            "batch",
            "4.00 KiB copied to the device per step",
            "8.00 KiB copied to the device per step",
        ),
        (SLOW, training(micro_batches=2), "batch", "1 micro-batch per step", "2 micro-batches per step"),
        (SLOW, training(distributedInfo={"rank": 0, "world_size": 8}), "ranks", "1 rank", "8 ranks"),
        (SLOW, training(with_stack=1), "recording options", "neither with_stack nor profile_memory", "with_stack"),
        (SLOW, training(marked=False), "steps", "one step", "the whole recording"),
        (
            training(marked=False),
            training(marked=False, steps=3),
            "steps",
            "2 optimizer steps in the whole recording",
            "3 optimizer steps in the whole recording",
        ),
    ],
)
def test_a_difference_is_named_and_nothing_is_called_faster(
    tmp_path: Path, first: TraceBuilder, second: TraceBuilder, aspect: str, before: str, after: str
) -> None:
    value = compared(tmp_path, first, second)
    found = [mismatch for mismatch in value.comparability.mismatches if mismatch.aspect == aspect]
    assert [(mismatch.before, mismatch.after) for mismatch in found] == [(before, after)]
    assert value.diff.step.verdict == "incomparable"
    tables = (value.diff.categories, value.diff.operators_host, value.diff.operators_device, value.diff.kernels)
    verdicts = {row.verdict for table in tables if table is not None for row in table.rows}
    assert verdicts <= {"incomparable", "appeared", "vanished"}
    for text in (rendered(value, 160), value.to_markdown()):
        lines = text.splitlines()
        assert lines[0].startswith("Not comparable: the recordings differ in ")
        assert aspect in lines[0]
        figures = text.replace("Neither is called faster", "")
        assert not {"faster", "slower", "same"} & set(figures.replace(":", " ").split())
    assert rendered(value, 160).index(before) < rendered(value, 160).index("takes")
    assert json.loads(value.to_json())["diff"]["step"]["verdict"] == "incomparable"


@pytest.mark.parametrize(
    ("first", "second", "unchecked", "note"),
    [
        (training(shapes=False), training(shapes=False), ("batch",), ""),  # equal copies are no proof
        (
            training(),  # compiled code hides layers, and is no other model
            training(layers=("aten::linear",)).annotation("Torch-Compiled Region: 0/0", 10, 200),
            ("model",),
            "",
        ),
        (stacked("Conv2d"), stacked("Conv2d"), (), ""),
        (
            training().op("aten::linear", 300, 8, dims=[[32, 64], [50257, 64]]),  # a layer that was padded
            training().op("aten::linear", 300, 8, dims=[[32, 64], [50304, 64]]),
            (),
            "The models differ in some layers. Only before: linear 50257×64. Only after: linear 50304×64.",
        ),
    ],
)
def test_what_does_not_make_recordings_incomparable(
    tmp_path: Path, first: TraceBuilder, second: TraceBuilder, unchecked: tuple[str, ...], note: str
) -> None:
    value = compared(tmp_path, first, second)
    assert value.comparability.mismatches == ()
    assert set(unchecked) <= set(value.comparability.unchecked)
    assert all(f"{aspect}" in rendered(value, 160) for aspect in ("not checked", *unchecked) if unchecked)
    assert note in ("", *value.notes)


def test_the_same_training_is_compared(tmp_path: Path) -> None:
    value = compared(tmp_path, training(step_us=2000), training(step_us=1000))
    assert value.comparability.mismatches == ()
    assert value.comparability.unchecked == ()
    assert value.comparability.throughput is None
    assert rendered(value, 160).startswith("A step took 2.00 ms and takes 1.00 ms (mean, 0.500×): faster")


def test_throughput_where_the_batch_differs(tmp_path: Path) -> None:
    value = compared(tmp_path, training(step_us=1000), training(step_us=2000, batch=256))
    throughput = value.comparability.throughput
    assert throughput is not None
    assert (throughput.before_samples, throughput.after_samples) == (32, 256)
    assert (throughput.before_per_s, throughput.after_per_s) == (pytest.approx(32_000), pytest.approx(128_000))
    expected = "32,000 samples/s before (32 samples per step), 128,000 samples/s after (256 samples per step), 4.00×"
    assert expected in rendered(value, 160)
    accumulating = compared(tmp_path, training(step_us=1000), training(step_us=2000, micro_batches=4))
    assert accumulating.comparability.throughput is not None
    assert accumulating.comparability.throughput.after_per_s == pytest.approx(64_000)
    other_model = compared(tmp_path, training(), training(batch=256, layers=TRANSFORMER))
    assert other_model.comparability.throughput is None


PLAIN: dict[str, Any] = {"kernel": "volta_sgemm_128x64_nn", "dtype": "float"}
MIXED: dict[str, Any] = {"kernel": "volta_fp16_s884gemm_fp16_128x64", "dtype": "c10::Half"}


def test_a_prediction_is_joined_only_if_nothing_else_changed(tmp_path: Path) -> None:
    alone = compared(tmp_path, training(**PLAIN), training(**MIXED, step_us=900))
    assert alone.mixed_precision is not None
    fused = compared(tmp_path, training(**PLAIN), training(**MIXED, optimizer="aten::_fused_sgd_"))
    assert fused.mixed_precision is None
    because = "because something else changed too: optimizer implementation foreach → fused."
    assert any(because in note for note in fused.notes)
    workers: list[dict[str, Any]] = [{LOADER_KEY: {"batch_size": 32, "workers": number}} for number in (0, 4)]
    loaded = compared(tmp_path, training(**PLAIN, **workers[0]), training(**MIXED, **workers[1]))
    assert loaded.mixed_precision is None
    assert any("num_workers 0 → 4" in note for note in loaded.notes)
    batch = compared(tmp_path, training(**PLAIN), training(**MIXED, batch=256))
    assert batch.mixed_precision is None


RESNET = "kineto/resnet50_num_workers_0/worker0.1623143089861.769c3eb.pt.trace.json.gz"
RESNET_WORKERS = "kineto/resnet50_num_workers_4/worker0.1623212756351.234cf25.pt.trace.json.gz"
BERT = "tracelens/h100/gaunernst_bert-small-uncased__1016001.737b43a.json.gz"
BERT_AMD = "tracelens/mi300/gaunernst_bert-small-uncased__1016001.ec4563a.json.gz"


@pytest.mark.corpus
def test_resnet_on_a_v100_is_not_compared_with_a_language_model_on_an_h100(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", str(corpus / "traces" / RESNET), str(corpus / "traces" / BERT)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Not comparable: the recordings differ in device, model")
    assert "Tesla V100-DGXS-32GB before, NVIDIA H100 80GB HBM3 after" in shown
    assert ": faster" not in shown


@pytest.mark.corpus
def test_real_recordings_of_one_training_stay_comparable(corpus: Path) -> None:
    before, after = (lightning_perf.analyze(corpus / "traces" / path) for path in (RESNET, RESNET_WORKERS))
    assert before.diff(after).comparability.mismatches == ()
    assert before.diff(after).diff.step.verdict == "faster"


@pytest.mark.corpus
def test_the_same_model_on_another_device(corpus: Path) -> None:
    before, after = (lightning_perf.analyze(corpus / "traces" / path) for path in (BERT, BERT_AMD))
    assert [mismatch.aspect for mismatch in before.diff(after).comparability.mismatches] == ["device"]
