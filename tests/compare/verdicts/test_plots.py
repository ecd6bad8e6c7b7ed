"""Plots against their document: what is drawn is what the document holds, whatever it lacks and whatever names hold."""

import re
import struct
from importlib import resources
from xml.etree import ElementTree

import numpy as np
import pytest
from msgspec.structs import replace

from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.compare.verdicts.comparison import Prediction
from lightning_perf.compare.verdicts.gates import Settings
from lightning_perf.compare.verdicts.page import draw_plots, save_plots
from lightning_perf.errors import CompareError
from lightning_perf.run_files.run_record import Place
from lightning_perf.show.plots import COLORS
from lightning_perf.statistics.values import Estimate
from tests.compare.support import BASE_MS, write_run

pytest.importorskip("matplotlib")

NAMES = ("32-true", "16-mixed")
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


def points(axes):
    """Every point that is drawn with a marker."""
    lines = (line for line in axes.lines if line.get_marker() not in ("None", "", None))
    return [point for line in lines for point in zip(*map(np.atleast_1d, line.get_data()), strict=True)]


def words(figure):
    texts = []
    for axes in figure.axes:
        texts += [*axes.texts, axes.xaxis.label, axes.yaxis.label, *axes.get_yticklabels()]
    return " ".join(" ".join(text.get_text() for text in (*figure.texts, *texts)).split())


def used(comparison, metric):
    return sorted(r.values[metric] for r in comparison.runs if r.left_out is None and r.values[metric] is not None)


@pytest.mark.parametrize("count", [2, 5])
def test_every_run_is_a_point_and_the_boxes_are_the_summaries(make, count):
    comparison = make([f"arm{n}" for n in range(count)])
    figure = draw_plots(comparison)["times"]
    for axes, metric in zip(figure.axes, ("step_time", "train_time"), strict=True):
        assert sorted(x for x, _ in points(axes)) == pytest.approx(used(comparison, metric))
        for arm, box in zip(comparison.arms, axes.patches, strict=True):
            corners = box.get_path().vertices[:, 0]
            assert (min(corners), max(corners)) == pytest.approx((arm.metrics[metric].q1, arm.metrics[metric].q3))
    assert "n = 6 per arm, in blocks · NVIDIA H200" in words(figure)


def test_collapsed_runs_stand_apart_and_are_counted(make):
    comparison = make(collapsed={(1, 2), (1, 5)})
    figure = draw_plots(comparison)["accuracy"]
    lost, learned = figure.axes
    assert [x for x, _ in points(lost)] == pytest.approx([5.0, 5.0])
    expected = [100 * v for v in used(comparison, "accuracy") if v > 0.5]
    assert sorted(x for x, _ in points(learned)) == pytest.approx(expected)
    assert len(expected) == 10
    assert "16-mixed 2 of 6 collapsed" in words(figure)
    assert f"below {100 * comparison.collapse_limit:.1f} % a run counts as collapsed" in words(figure)


def test_a_block_is_a_line_through_its_runs_and_the_drift_has_its_figures(make):
    comparison = make()
    figures = draw_plots(comparison)
    lines = [tuple(line.get_xdata()) for line in figures["pairs"].axes[0].lines if len(line.get_xdata()) == 2]
    by_block = {}
    for run in comparison.runs:
        by_block.setdefault(run.block, {})[run.arm] = run.values["step_time"]
    assert sorted(lines) == sorted((row["32-true"], row["16-mixed"]) for row in by_block.values())
    residuals = [100 * residual for residual in comparison.drift.residuals]
    assert [y for _, y in sorted(points(figures["order"].axes[0]))] == pytest.approx(residuals)
    assert re.search(r"drift from the first run to the last: [+−±]", words(figures["order"]))


def test_the_forest_shows_estimates_intervals_one_and_the_zone(make):
    comparison = make()
    ratios, differences = draw_plots(comparison)["ratios"].axes
    (candidate,) = comparison.candidates
    drawn = {tuple(np.atleast_1d(line.get_xdata())) for line in (*ratios.lines, *differences.lines)}
    bars = [bar.get_segments()[0][:, 0] for axes in (ratios, differences) for bar in axes.collections]
    for result in candidate.metrics:
        scale, estimate = 100 if result.metric == "accuracy" else 1, result.estimate
        assert (scale * estimate.value,) in drawn
        if estimate.low is not None:
            assert any(bar == pytest.approx([scale * estimate.low, scale * estimate.high]) for bar in bars)
    assert (1, 1) in drawn
    assert (-1.0, -1.0) in drawn  # the margin
    zone = ratios.patches[0]
    assert (zone.get_x(), zone.get_x() + zone.get_width()) == pytest.approx((1 / 1.01, 1.01))
    assert next(text.get_text() for text in ratios.texts if "to" in text.get_text()).startswith("−9.9 % (−10.")


def test_a_prediction_stands_beside_what_came(make):
    comparison = make()
    (candidate,) = comparison.candidates
    measured = Estimate(1.11, 1.09, 1.13, 0.95, 6, "paired t")
    predicted = replace(candidate, prediction=Prediction("r1", 1.3, 2.0, measured, False))
    figure = draw_plots(replace(comparison, candidates=(predicted,)))["prediction"]
    (bar,) = figure.axes[0].patches
    assert (bar.get_x(), bar.get_x() + bar.get_width()) == pytest.approx((1.3, 2.0))
    assert points(figure.axes[0])[0][0] == pytest.approx(1.11)
    assert "1.11×" in words(figure)
    assert "16-mixed outside the prediction" in words(figure)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"blocked": False}, {"times", "accuracy", "ratios", "order"}),
        ({"accuracies": False}, {"times", "pairs", "ratios", "order"}),
        ({"times": (100.0,)}, {"times", "accuracy", "pairs", "ratios"}),
        (
            {"collapsed": {(a, n) for a in (0, 1) for n in range(1, 7)}},
            {"times", "accuracy", "pairs", "ratios", "order"},
        ),
    ],
    ids=["not in blocks", "no accuracy", "one run an arm", "nothing learned"],
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
    save_plots(replace(comparison, blocked=False, accuracy_metric=None), folder)
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
    wide = replace(candidate.metrics[0], estimate=Estimate(0.05, 1e-17, 1e14, 0.95, 2, "paired t"))
    candidate = replace(candidate, metrics=(wide, *candidate.metrics[1:]))
    axes = draw_plots(replace(comparison, candidates=(candidate,)))["ratios"].axes[0]
    left, right = axes.get_xlim()
    assert 1e-4 < left < 1e-3 < 1e3 < right < 1e4
    ticks = [tick for tick in axes.get_xticks() if left <= tick <= right]
    assert 1 in ticks
    assert 4 <= len(ticks) <= 8
    assert {line.get_marker() for line in axes.lines} & {"<", ">"} == {"<", ">"}


def test_places_in_the_order_are_whole_numbers(make):
    axes = draw_plots(make(times=tuple(100.0 + n % 7 for n in range(15))))["order"].axes[0]
    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_colors_are_those_of_the_page():
    styles = (resources.files("lightning_perf.page") / "assets/styles/colors.css").read_text().partition("@media")[0]
    of_page = dict(re.findall(r"--([\w-]+): (#\w+);", styles))
    assert {name: of_page[name] for name in COLORS} == COLORS
