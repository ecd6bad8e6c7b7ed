"""The precision of a fit in the report, and its compilations: unreadable files, and of several ranks."""

from pathlib import Path

from msgspec.structs import replace

import lightning_perf
from lightning_perf.analysis.precision.scales import (
    judge_drift,
    summarize_loss_scale,
    summarize_shadow,
    tabulate_underflow,
)
from lightning_perf.report.build import build_report
from lightning_perf.report.sections.precision import fp32_section, precision_section
from lightning_perf.run_files.fit.compilations import COMPILATIONS
from lightning_perf.run_files.numerics.precision import (
    BadRun,
    Fp32Arithmetic,
    PrecisionSetting,
    RunPrecision,
)
from lightning_perf.run_files.numerics.samples import (
    GradientSample,
    LayerGradients,
    LayerShadow,
    NonFinite,
    ScaleEvent,
    ShadowSample,
)
from lightning_perf.show.blocks import Heading
from tests.findings import accounts, compilations
from tests.findings.compilations import SHAPES
from tests.page.samples import FIRST_OVERFLOW, trained_precision
from tests.support.shown import console_text, table_of

FP32 = Fp32Arithmetic(device_has_tf32=True, tf32_matmul=False, tf32_convolution=True)


def shown(precision: RunPrecision) -> str:
    heading, *blocks = precision_section(precision, top=8)
    assert heading == Heading("Precision")
    return console_text([*blocks, *fp32_section(precision, None, top=8)])


def test_everything_that_is_known_is_said():
    events = [
        *FIRST_OVERFLOW,
        ScaleEvent("overflow", 4, 16384.0, 5, 500_000_000, origin=NonFinite("", "net.conv1", "", True, "nan", "half")),
        ScaleEvent("overflow", 5, 8192.0, 6, 600_000_000, origin=NonFinite("aten::div", "", "", False, "nan", "float")),
        ScaleEvent("end", 9, 8192.0, 10, 1_000_000_000),
    ]
    counted = LayerGradients("fp16", 10, 0, -20, (90,))
    gone = LayerGradients("fp16", 50, 0, -40, ())
    table = tabulate_underflow([GradientSample(0, 1024.0, {"a": counted, "b": gone}, {"b": counted})])
    setting = PrecisionSetting("16-mixed", "16-mixed", True, True, tuple(f"l{n}" for n in range(8)), FP32, "A note")
    precision = RunPrecision(setting, summarize_loss_scale(events), table, trained_precision().numerics)
    text = shown(precision)
    for line in (
        "16-mixed · FP32 is TF32 in convolutions and true FP32 in matrix products · autocast's weight cache on",
        "A note",
        "Kept in FP32: l0, l1, l2, l3, l4, l5 and 2 more",
        "Loss scale 65,536 at the start, 8,192 at the end · 3 of 10 steps skipped, 100 ms wasted · goodput 90.0 %",
        "Learning-rate schedulers made 1 step on skipped optimizer steps",
        "Comparison with FP32",
        "Step 3 overflowed: inf from MulBackward0 in net.fc (model.py:7).",
        "Step 4 overflowed: nan from a gradient in net.conv1.",
        "Step 5 overflowed: nan from aten::div in training_step.",
        "2 layers of 2 underflow in fp16",
        "all vanished",
        "init_scale=65536",
        "beyond seed noise",
    ):
        assert line in text, f"{line}\n{text}"
    layers = table_of(precision_section(precision, top=8), "layer").rows
    assert [(row[0].text, row[0].troubled) for row in layers] == [("a", True), ("b", True)]


def test_fp32_run_has_one_line():
    setting = PrecisionSetting("32-true", None, False, None, (), FP32)
    assert shown(RunPrecision(setting)).splitlines() == [
        "32-true · FP32 is TF32 in convolutions and true FP32 in matrix products"
    ]


def test_a_diverged_run_is_described_in_words():
    drift = judge_drift(
        precision="16-mixed",
        mixed_losses=[2.0, float("nan")],
        fp32_losses=[2.0, 1.4],
        mixed_end=float("inf"),
        fp32_end=1.0,
        seed_ends=[1.0] * 4,
    )
    text = shown(RunPrecision(PrecisionSetting("16-mixed", None, True, True, (), FP32), numerics=drift))
    assert "the loss is NaN or infinite, in FP32 1. With other seeds, 1–1 is expected: beyond seed noise." in text


def test_a_diagnosis_comes_before_the_figures_with_all_that_replays_showed():
    loss_scale = summarize_loss_scale([*FIRST_OVERFLOW, ScaleEvent("end", 9, 8192.0, 10, 1_000_000_000)])
    setting = PrecisionSetting("16-mixed", None, True, True, (), FP32)
    numerics = trained_precision().numerics
    precision = RunPrecision(setting, loss_scale, numerics=numerics, bad_run=BadRun(3, "16-mixed", "loss"))
    sample = ShadowSample(0, 1.0, 1.0, LayerShadow(0.5, 1.0), {"a": LayerShadow(0.5, 1.0)}, 1, 10)
    report = replace(build_report((), precision=precision), shadow=summarize_shadow([sample]))
    before, _, figures = report.to_markdown().partition("<details>")
    said = (
        "### Diagnosis",
        "turned NaN or infinite in step 3",
        "Step 3 overflowed",
        "beyond seed noise",
        "a points elsewhere",
    )
    assert before.startswith("**Error** The loss turned NaN or infinite in step 3")
    before = "".join(before.partition("### Diagnosis")[1:])
    assert [before.count(each) for each in said] == [1] * len(said)
    assert [figures.count(each) for each in said] == [0] * len(said)


def test_a_damaged_file_is_left_out_with_a_note(tmp_path: Path) -> None:
    compilations.recompiling(tmp_path)
    COMPILATIONS.path(tmp_path, 0).write_text('{"compile_id":7}\n{}\n', encoding="utf-8")
    report = lightning_perf.analyze(tmp_path)
    assert report.compilation is None
    assert any(note.startswith("The compilations are left out: ") for note in report.notes)


def test_the_first_rank_that_compiled_is_shown(tmp_path: Path) -> None:
    COMPILATIONS.append(COMPILATIONS.path(tmp_path, 1), *SHAPES)
    report = accounts.report_of(accounts.account(), tmp_path)
    assert report.compilation is not None
    assert report.compilation.rank == 1
