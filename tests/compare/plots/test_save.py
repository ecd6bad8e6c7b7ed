"""Plots against their document: what is drawn is what the document holds, whatever it lacks and whatever names hold."""

import dataclasses
import re
import struct
from xml.etree import ElementTree

import numpy as np
import pytest

from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.plots.save import draw_plots, save_plots
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.comparison import Prediction
from lightning_perf.compare.verdicts.gates import Settings
from lightning_perf.run_files.run_record import Place
from lightning_perf.statistics.values import Estimate
from tests.compare.support import write_run

pytest.importorskip("matplotlib")

NAMES = ("32-true", "16-mixed")
BASE_MS = (100.0, 103.0, 99.0, 101.0, 104.0, 98.0)
HOSTILE = (
    "$x_{$ \x1b[31m <b>&amp; 手話 \u202e a name that goes on and on: torch.compile(mode='max-autotune'), channels_last"
)


@pytest.fixture
def make(tmp_path):
    """A comparison of arms, each a tenth faster than the one before; `collapsed` are pairs of arm and run."""

    def compare(names=NAMES, times=BASE_MS, *, blocked=True, accuracies=True, collapsed=(), **facts):
        arms = {
            name: [
                write_run(
                    tmp_path / str(arm) / str(n),
                    step_ms=ms * 0.9**arm * (1 + 0.004 * ((n * (arm + 3)) % 5)),
                    started=10.0 * n + arm,
                    accuracies=(0.5, 0.05 if (arm, n) in collapsed else 0.9 + 0.01 * ((n + arm) % 4))
                    if accuracies
                    else (),
                    train__seed=n,
                    place=Place("s", name, n, arm, treatment=("precision",)) if blocked else None,
                    **{"device__name": "NVIDIA H200"} | facts,
                )
                for n, ms in enumerate(times, start=1)
            ]
            for arm, name in enumerate(names)
        }
        return compare_arms(arms, Settings())

    return compare


def points(figure):
    """Every point that is drawn with a marker, by figure coordinates of its axes."""
    drawn = []
    for axes in figure.axes:
        for line in axes.lines:
            if line.get_marker() not in ("None", "", None):
                drawn += list(zip(*map(np.atleast_1d, line.get_data()), strict=True))
    return drawn


def words(figure):
    texts = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        texts += [text.get_text() for text in (*axes.texts, axes.xaxis.label, axes.yaxis.label)]
        texts += [label.get_text() for label in axes.get_yticklabels()]
    return " ".join(" ".join(texts).split())


def used(comparison, metric):
    return sorted(r.values[metric] for r in comparison.runs if r.left_out is None and r.values[metric] is not None)


@pytest.mark.parametrize("count", [2, 5])
def test_every_run_is_a_point_and_the_boxes_are_the_summaries(make, count):
    comparison = make([f"arm{n}" for n in range(count)])
    figure = draw_plots(comparison)["times"]
    steps, trainings = figure.axes
    for axes, metric in ((steps, "step_time"), (trainings, "train_time")):
        x = sorted(x for x, _ in points(type("One", (), {"axes": [axes]})))
        assert x == pytest.approx(used(comparison, metric))
        for arm, box in zip(comparison.arms, axes.patches, strict=True):
            corners = box.get_path().vertices[:, 0]
            assert (min(corners), max(corners)) == pytest.approx((arm.metrics[metric].q1, arm.metrics[metric].q3))
    assert "n = 6 per arm, in blocks · NVIDIA H200" in words(figure)


def test_collapsed_runs_stand_apart_and_are_counted(make):
    comparison = make(collapsed={(1, 2), (1, 5)})
    figure = draw_plots(comparison)["accuracy"]
    lost, learned = figure.axes
    assert [x for x, _ in points(type("One", (), {"axes": [lost]}))] == pytest.approx([5.0, 5.0])
    expected = [100 * v for v in used(comparison, "accuracy") if v > 0.5]
    assert sorted(x for x, _ in points(type("One", (), {"axes": [learned]}))) == pytest.approx(expected)
    assert len(expected) == 10
    assert "16-mixed 2 of 6 collapsed" in words(figure)
    assert f"A run below {100 * comparison.collapse_limit:.1f} % counts as collapsed" in words(figure)


def test_without_collapsed_runs_there_is_one_panel(make):
    assert len(draw_plots(make())["accuracy"].axes) == 1


def test_a_block_is_a_line_through_its_runs(make):
    comparison = make()
    axes = draw_plots(comparison)["pairs"].axes[0]
    lines = [
        tuple(line.get_xdata()) for line in axes.lines if line.get_linestyle() == "-" and len(line.get_xdata()) == 2
    ]
    by_block = {}
    for run in comparison.runs:
        by_block.setdefault(run.block, {})[run.arm] = run.values["step_time"]
    assert sorted(lines) == sorted((row["32-true"], row["16-mixed"]) for row in by_block.values())
    assert sorted(text.get_text() for text in axes.texts) == list("123456")


def test_the_forest_shows_estimates_intervals_one_and_the_zone(make):
    comparison = make()
    ratios, differences = draw_plots(comparison)["ratios"].axes
    (candidate,) = comparison.candidates
    drawn = {tuple(np.atleast_1d(line.get_xdata())) for line in (*ratios.lines, *differences.lines)}
    for result in candidate.metrics:
        scale = 100 if result.metric == "accuracy" else 1
        assert (scale * result.estimate.value,) in drawn
        if result.estimate.low is not None:
            assert (scale * result.estimate.low, scale * result.estimate.high) in drawn
    assert (1, 1) in drawn
    zone = ratios.patches[0]
    assert (zone.get_x(), zone.get_x() + zone.get_width()) == pytest.approx((1 / 1.01, 1.01))
    assert (-1.0, -1.0) in drawn  # the margin


def test_residuals_are_drawn_in_order_with_the_drift_in_words(make):
    comparison = make()
    figure = draw_plots(comparison)["order"]
    assert [y for _, y in sorted(points(figure))] == pytest.approx([100 * r for r in comparison.drift.residuals])
    assert re.search(r"Drift from the first run to the last: [+−±]", words(figure))


def test_a_prediction_stands_beside_what_came(make):
    comparison = make()
    (candidate,) = comparison.candidates
    measured = Estimate(1.11, 1.09, 1.13, 0.95, 6, "paired t")
    predicted = dataclasses.replace(candidate, prediction=Prediction("r1", 1.3, 2.0, measured, False))
    comparison = dataclasses.replace(comparison, candidates=(predicted,))
    figure = draw_plots(comparison)["prediction"]
    (bar,) = figure.axes[0].patches
    assert (bar.get_x(), bar.get_x() + bar.get_width()) == pytest.approx((1.3, 2.0))
    assert points(figure)[0][0] == pytest.approx(1.11)
    assert "1.11×, outside the prediction" in words(figure)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, {"times", "accuracy", "pairs", "ratios", "order"}),
        ({"blocked": False}, {"times", "accuracy", "ratios", "order"}),
        ({"accuracies": False}, {"times", "pairs", "ratios", "order"}),
        ({"times": (100.0,)}, {"times", "accuracy", "pairs", "ratios"}),
        (
            {"collapsed": {(a, n) for a in (0, 1) for n in range(1, 7)}},
            {"times", "accuracy", "pairs", "ratios", "order"},
        ),
    ],
    ids=["whole", "not in blocks", "no accuracy", "one run an arm", "nothing learned"],
)
def test_what_the_runs_lack_is_not_drawn(make, changes, names):
    assert set(draw_plots(make(**changes))) == names


def test_hostile_and_long_names_are_shown_as_they_are(make, tmp_path):
    comparison = make(("a", HOSTILE), device__name=HOSTILE)
    saved = save_plots(comparison, tmp_path / "plots")
    assert "$x_{$ \\x1b[31m <b>&amp;" in words(draw_plots(comparison)["times"])
    for file in saved.files:
        if file.suffix == ".svg":
            ElementTree.parse(file)


def test_files_are_the_same_each_time_show_in_tensorboard_and_replace_earlier_ones(make, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    comparison, folder = make(), tmp_path / "plots"
    saved = save_plots(comparison, folder)
    first = {file.name: file.read_bytes() for file in saved.files}
    events = accumulator.EventAccumulator(str(folder), size_guidance={"images": 0, "tensors": 0}).Reload()
    names = ("accuracy", "order", "pairs", "ratios", "times")
    assert saved.in_tensorboard
    assert sorted(events.Tags()["images"]) == [f"comparison/{name}" for name in names]
    for name in names:
        (image,) = events.Images(f"comparison/{name}")
        assert image.encoded_image_string == first[f"{name}.png"]
        assert (image.width, image.height) == pytest.approx(struct.unpack(">II", first[f"{name}.png"][16:24]), abs=1)
    assert {file.name: file.read_bytes() for file in save_plots(comparison, folder).files} == first
    save_plots(dataclasses.replace(comparison, blocked=False, accuracy_metric=None), folder)
    assert {file.stem for file in folder.glob("*.png")} == {"times", "ratios", "order"}
    assert not [file for file in folder.iterdir() if "partial" in file.name]
    assert len(list(folder.glob("events.*"))) == 1


def test_a_folder_that_cannot_be_written_is_an_error_that_says_so(make, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CompareError, match="plots cannot be written"):
        save_plots(make(), tmp_path / "file" / "plots")


def test_intervals_of_few_noisy_runs_end_in_arrows_and_leave_the_axis_legible(make):
    comparison = make(times=(100.0, 103.0))
    (candidate,) = comparison.candidates
    wide = dataclasses.replace(candidate.metrics[0], estimate=Estimate(0.05, 1e-17, 1e14, 0.95, 2, "paired t"))
    candidate = dataclasses.replace(candidate, metrics=(wide, *candidate.metrics[1:]))
    axes = draw_plots(dataclasses.replace(comparison, candidates=(candidate,)))["ratios"].axes[0]
    left, right = axes.get_xlim()
    assert 1e-4 < left < 1e-3 < 1e3 < right < 1e4
    ticks = axes.get_xticks()
    assert 1 in ticks
    assert 4 <= len(ticks) <= 8
    labels = [axes.xaxis.get_major_formatter()(tick, 0) for tick in (*ticks, 1e-5, 0.25)]
    assert labels == ["0.001", "0.01", "0.1", "1", "10", "100", "1000", "10⁻⁵", "0.25"]
    arrows = {line.get_marker() for line in axes.lines} & {"<", ">"}
    assert arrows == {"<", ">"}


def test_places_in_the_order_are_whole_numbers(make):
    axes = draw_plots(make(times=tuple(100.0 + n % 7 for n in range(15))))["order"].axes[0]
    assert all(tick == round(tick) for tick in axes.get_xticks())
