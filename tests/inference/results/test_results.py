"""The document, the best variants and the recommended one, and names on a plot."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.measurement.measure import Timed
from lightning_perf.inference.results.conclusions import cell_of, pareto_front, recommend, ruin_notes
from lightning_perf.inference.results.page import name_points
from lightning_perf.inference.results.tradeoff import Cell, Tradeoff
from tests.inference.support import estimate, row, tradeoff

COORDINATES = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=12)


def named(coordinates):
    return {str(number): (float(cost), float(accuracy)) for number, (cost, accuracy) in enumerate(coordinates)}


@given(COORDINATES)
def test_the_staircase_of_a_sweep_by_cost_is_the_front(coordinates):
    points = named(coordinates)
    best, expected = -1.0, set()
    for cost in sorted({cost for cost, _ in points.values()}):
        most = max(accuracy for other, accuracy in points.values() if other == cost)
        if most > best:
            best = most
            expected |= {name for name, point in points.items() if point == (cost, most)}
    assert set(pareto_front(points)) == expected


@given(COORDINATES, st.floats(0, 5))
def test_noise_leaves_a_front_with_the_most_accurate_in_it(coordinates, tie):
    points = named(coordinates)
    most = max(accuracy for _, accuracy in points.values())
    assert any(points[name][1] == most for name in pareto_front(points, tie))


def test_as_fast_within_noise_the_more_accurate_wins():
    points = {"a": (1.00, 0.90), "b": (1.01, 0.95), "c": (1.50, 0.95)}
    assert pareto_front(points) == ("a", "b")
    assert pareto_front(points, tie=0.02) == ("b",)


ROUNDS = tuple(Timed((100, 101), (90, 91), ()) for _ in range(4))
CELL = Cell(1, 1, estimate(1.0), 0.05, (), ())
ROWS = [
    row("eager", 10),
    row("small", 4, 89, 200),
    row("equal", 4.1, 89, 100),
    row("int8", 2, 80),
    row("precise", 6, 91),
]


def choose(rows=ROWS, latency=None, drop=None):
    return recommend(rows, CELL, max_latency_ms=latency, max_accuracy_drop_points=drop)


@pytest.mark.parametrize(
    ("latency", "drop", "variant"),
    [
        (5, 1, "equal"),  # as fast within the noise and as accurate: the smaller
        (5, 10, "int8"),
        (None, 0, "precise"),
        (7, None, "precise"),
        (5, None, "small"),  # the most accurate below 5 ms, then the faster
        (3, None, "int8"),
        (4.2, 1, None),  # p90 is 4.4 ms
        (1, None, None),
        (3, 1, None),
    ],
)
def test_limits(latency, drop, variant):
    assert choose(latency=latency, drop=drop).variant == variant


def test_reasons_name_the_nearest():
    assert "the fastest, int8, has 2.20 ms" in choose(latency=1).reason
    both = choose(latency=3, drop=1).reason
    assert "small, has a p90 of 4.40 ms" in both
    assert "a drop of 10.00 points" in both
    assert "the nearest, int8, has a drop of 10.00 points" in choose([row("int8", 2, 80)], drop=1).reason
    assert choose([], latency=1).reason == "No variant was measured."


def test_a_drop_that_the_data_cannot_rule_out_is_said():
    assert "a drop of up to 3.5 points cannot be ruled out" in choose(latency=5, drop=1).reason


def test_a_variant_that_failed_with_another_batch_size_is_not_chosen():
    rows = [row("eager", 10), row("fast", 2, reason="its process crashed with SIGKILL")]
    assert choose(rows, latency=20, drop=1).variant == "eager"


def judged(name, p50_ms, correct, agreement, chance):
    found = row(name, p50_ms, correct)
    return replace(found, accuracy=replace(found.accuracy, agreement=agreement, chance_agreement=chance))


RUINED = {
    "other classes": judged("int8", 1, 90, 0.0, 0.1),
    "more accurate by other labels": judged("int8", 1, 95, 0.04, 0.1),
    "most inputs": judged("int8", 1, 90, 0.49, 0.1),
    "always the most frequent class": judged("int8", 1, 90, 0.9, 0.9),
    "by chance, with few classes": judged("int8", 1, 90, 0.55, 0.5),
}


@pytest.mark.parametrize("kind", RUINED)
@pytest.mark.parametrize(("latency", "drop"), [(5, 1), (None, 0), (5, None)])
def test_a_ruined_variant_is_never_recommended(kind, latency, drop):
    rows = [row("eager", 3), RUINED[kind]]
    assert choose(rows, latency, drop).variant == "eager"
    assert choose([RUINED[kind]], latency, drop).variant is None
    (note,) = ruin_notes(rows)
    assert note.startswith("int8 is not recommended: it agrees with the original on ")
    cell = cell_of(rows, threads=1, batch=1, baseline=ROUNDS, again=ROUNDS)
    assert cell.front == cell.size_front == ("eager",)


@pytest.mark.parametrize(("agreement", "chance"), [(1.0, 1.0), (0.97, 0.91), (0.6, 0.001), (1.0, 0.1)], ids=str)
def test_a_variant_that_agrees_with_the_original_stays(agreement, chance):
    assert choose([row("eager", 3), judged("int8", 1, 90, agreement, chance)], 5, 1).variant == "int8"


@pytest.mark.parametrize(("error", "variant"), [(8.5, "eager"), (1.0, "eager"), (0.2, "int8")])
def test_without_validation_data_the_outputs_decide(error, variant):
    rows = [row("eager", 3, accuracy=None), row("int8", 1, accuracy=None, output_error=error)]
    assert choose(rows, 5).variant == variant


def test_nothing_is_recommended_without_limits_or_if_accuracy_means_nothing():
    assert choose() is None
    found = recommend(ROWS, CELL, max_latency_ms=5, max_accuracy_drop_points=1, doubt="No better than guessing.")
    assert (found.variant, found.reason) == (None, "No better than guessing.")


def test_a_limit_of_accuracy_needs_data():
    with pytest.raises(InferenceError, match="no validation data"):
        choose([row("eager", accuracy=None)], drop=1)


def test_names_of_close_points_cover_no_other():
    pytest.importorskip("matplotlib", reason="needs the compare extra")
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    figure = Figure()
    axes = figure.subplots()
    points = [(f"a name of some length {n}", 0.5 + 0.01 * n, 0.5 + 0.005 * n) for n in range(10)]
    name_points(figure, axes, points)
    assert {(text.get_text(), *text.xy) for text in axes.texts} == set(points)
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in axes.texts]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_json_gives_the_same_document():
    document = tradeoff([row("eager"), row("broken", reason="no compiler", accuracy=None, latencies=())])
    assert Tradeoff.from_json(document.to_json()) == document
    assert document.row("broken").reason == "no compiler"
    assert document.row("eager").latency(1, 1).calls == 200
    assert document.row("eager").latency(2, 1) is None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a trade-off document"),
        (b"[1]", "not a trade-off document"),
        (b'{"schema_version": 9}', "upgrade lightning-perf"),
        (b'{"schema_version": 0}', "measure again"),
        (b'{"schema_version": 1}', "damaged"),
        (tradeoff([row("eager", size="big")]).to_json(), "damaged"),
    ],
)
def test_bad_documents_are_told(data, said):
    with pytest.raises(InferenceError, match=said):
        Tradeoff.from_json(data)
