"""Recordings of different trainings are not called faster or slower."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

import lightning_perf
from lightning_perf.cli import main
from lightning_perf.report.compared import Compared
from lightning_perf.trace.description import LOADER_KEY
from tests.support.trace_builder import FETCH, TraceBuilder

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


def text_of(value: Compared) -> str:
    file = io.StringIO()
    value.print(file=file, width=160)
    return file.getvalue()


DIFFERENT: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "device": ({"device": "NVIDIA H100"}, "device", "NVIDIA A100", "NVIDIA H100"),
    "layers": (
        {"layers": TRANSFORMER},
        "model",
        "3 × convolution, 3 × batch_norm per step",
        "3 × linear, 3 × embedding, 3 × layer_norm per step",
    ),
    "width": (
        {"width": 96},
        "model",
        "convolution 64×1, convolution 64×2, convolution 64×3 and 3 more",
        "convolution 96×1, convolution 96×2, convolution 96×3 and 3 more",
    ),
    "batch": ({"batch": 256}, "batch", "input 32×1×64", "input 256×1×64"),
    "micro-batches": ({"micro_batches": 2}, "batch", "1 micro-batch per step", "2 micro-batches per step"),
    "ranks": ({"distributedInfo": {"rank": 0, "world_size": 8}}, "ranks", "1 rank", "8 ranks"),
    "stacks": (
        {"with_stack": 1},
        "recording options",
        "neither with_stack nor profile_memory",
        "with_stack",
    ),
    "steps": ({"marked": False}, "steps", "one step", "the whole recording"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_difference_is_named_and_nothing_is_called_faster(tmp_path: Path, name: str) -> None:
    changes, aspect, before, after = DIFFERENT[name]
    value = compared(tmp_path, training(step_us=2000), training(step_us=1000, **changes))
    found = [mismatch for mismatch in value.comparability.mismatches if mismatch.aspect == aspect]
    assert [(mismatch.before, mismatch.after) for mismatch in found] == [(before, after)]
    assert value.diff.step.verdict == "incomparable"
    tables = (value.diff.categories, value.diff.operators_host, value.diff.operators_device, value.diff.kernels)
    verdicts = {row.verdict for table in tables if table is not None for row in table.rows}
    assert verdicts <= {"incomparable", "appeared", "vanished"}
    for text in (text_of(value), value.to_markdown()):
        lines = text.splitlines()
        assert lines[0].startswith("Not comparable: the recordings differ in ")
        assert aspect in lines[0]
        figures = text.replace("Neither is called faster", "")
        assert not {"faster", "slower", "same"} & set(figures.replace(":", " ").split())
    assert text_of(value).index(before) < text_of(value).index("takes")
    assert json.loads(value.to_json())["diff"]["step"]["verdict"] == "incomparable"


def test_the_same_training_is_compared(tmp_path: Path) -> None:
    value = compared(tmp_path, training(step_us=2000), training(step_us=1000))
    assert value.comparability.mismatches == ()
    assert value.comparability.unchecked == ()
    assert value.comparability.throughput is None
    assert text_of(value).startswith("A step took 2.00 ms and takes 1.00 ms (mean, 0.500×): faster")


def test_throughput_where_the_batch_differs(tmp_path: Path) -> None:
    value = compared(tmp_path, training(step_us=1000), training(step_us=2000, batch=256))
    throughput = value.comparability.throughput
    assert throughput is not None
    assert (throughput.before_samples, throughput.after_samples) == (32, 256)
    assert (throughput.before_per_s, throughput.after_per_s) == (pytest.approx(32_000), pytest.approx(128_000))
    expected = "32,000 samples/s before (32 samples per step), 128,000 samples/s after (256 samples per step), 4.00×"
    assert expected in text_of(value)
    accumulating = compared(tmp_path, training(step_us=1000), training(step_us=2000, micro_batches=4))
    assert accumulating.comparability.throughput is not None
    assert accumulating.comparability.throughput.after_per_s == pytest.approx(64_000)
    other_model = compared(tmp_path, training(), training(batch=256, layers=TRANSFORMER))
    assert other_model.comparability.throughput is None


def test_the_batch_of_the_loader_counts_first(tmp_path: Path) -> None:
    def loading(samples: int) -> TraceBuilder:
        noted: dict[str, Any] = {LOADER_KEY: {"batch_size": samples}}
        return training(shapes=False, **noted)

    value = compared(tmp_path, loading(32), loading(64))
    assert [(each.aspect, each.before, each.after) for each in value.comparability.mismatches] == [
        ("batch", "32", "64")
    ]
    assert value.comparability.throughput is not None


def test_inputs_of_another_size_are_no_equal_batches(tmp_path: Path) -> None:
    noted: dict[str, Any] = {LOADER_KEY: {"batch_size": 32}}
    value = compared(tmp_path, training(**noted), training(length=4, **noted))
    assert [(each.aspect, each.before, each.after) for each in value.comparability.mismatches] == [
        ("batch", "input 32×1×64", "input 32×4×64")
    ]


def test_copied_bytes_stand_in_for_a_batch_that_is_not_recorded(tmp_path: Path) -> None:
    same = compared(tmp_path, training(shapes=False), training(shapes=False))
    assert (same.comparability.mismatches, same.comparability.unchecked) == ((), ("batch",))
    assert "Not recorded by both, so not checked: batch." in text_of(same)
    (found,) = compared(tmp_path, training(shapes=False), training(shapes=False, copied=8192)).comparability.mismatches
    texts = ("batch", "4.00 KiB copied to the device per step", "8.00 KiB copied to the device per step")
    assert (found.aspect, found.before, found.after) == texts


@pytest.mark.parametrize("shapes", [False, True])
def test_layers_are_counted(tmp_path: Path, shapes: bool) -> None:
    deeper = compared(tmp_path, training(shapes=shapes), training(shapes=shapes, number=8)).comparability
    (found,) = deeper.mismatches
    texts = ("3 × convolution, 3 × batch_norm per step", "8 × convolution, 8 × batch_norm per step")
    assert (found.aspect, found.before, found.after) == ("model", *texts)
    other = compared(
        tmp_path, training(shapes=shapes), training(shapes=shapes, layers=("aten::convolution",))
    ).comparability
    assert {mismatch.aspect for mismatch in other.mismatches} == {"model"}


def test_one_layer_that_was_padded_leaves_the_model_the_same(tmp_path: Path) -> None:
    padded = training().op("aten::linear", 300, 8, dims=[[32, 64], [50304, 64]])
    value = compared(tmp_path, training().op("aten::linear", 300, 8, dims=[[32, 64], [50257, 64]]), padded)
    assert value.comparability.mismatches == ()
    note = "The models differ in some layers. Only before: linear 50257×64. Only after: linear 50304×64."
    assert note in value.notes


def test_compiled_code_hides_layers_and_is_no_other_model(tmp_path: Path) -> None:
    compiled = training(layers=("aten::linear",)).annotation("Torch-Compiled Region: 0/0", 10, 200)
    value = compared(tmp_path, training(), compiled)
    assert [each.aspect for each in value.comparability.mismatches] == []
    assert "model" in value.comparability.unchecked


def test_modules_tell_models_apart_where_layers_do_not(tmp_path: Path) -> None:
    def stacked(*names: str) -> TraceBuilder:
        builder = training(layers=())
        for position, name in enumerate(names):
            builder.python(f"nn.Module: {name}_{position}", 50 + 20 * position, 10)
        return builder

    value = compared(tmp_path, stacked("Conv2d", "Conv2d", "ReLU"), stacked("Linear", "GELU", "Linear"))
    assert [(each.before, each.after) for each in value.comparability.mismatches if each.aspect == "model"] == [
        ("2 × Conv2d, 1 × ReLU", "2 × Linear, 1 × GELU")
    ]
    assert compared(tmp_path, stacked("Conv2d"), stacked("Conv2d")).comparability.mismatches == ()


def test_whole_recordings_with_other_numbers_of_steps(tmp_path: Path) -> None:
    value = compared(tmp_path, training(marked=False), training(marked=False, steps=3))
    (found,) = value.comparability.mismatches
    texts = ("steps", "2 optimizer steps in the whole recording", "3 optimizer steps in the whole recording")
    assert (found.aspect, found.before, found.after) == texts


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
