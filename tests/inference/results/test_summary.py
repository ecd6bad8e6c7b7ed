from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.inference.results.summary import Point, pareto_front

COORDINATES = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=12)


@given(COORDINATES)
def test_the_staircase_of_a_sweep_by_cost_is_the_front(coordinates):
    points = [Point(str(n), float(x), float(y)) for n, (x, y) in enumerate(coordinates)]
    best, expected = -1.0, set()
    for cost in sorted({point.cost for point in points}):
        most = max(point.accuracy for point in points if point.cost == cost)
        if most > best:
            best = most
            expected |= {p.name for p in points if (p.cost, p.accuracy) == (cost, most)}
    assert set(pareto_front(points)) == expected


@given(COORDINATES, st.floats(0, 5))
def test_noise_leaves_a_front_with_the_most_accurate_in_it(coordinates, tie):
    points = [Point(str(n), float(x), float(y)) for n, (x, y) in enumerate(coordinates)]
    front = pareto_front(points, tie)
    most = max(point.accuracy for point in points)
    assert any(point.accuracy == most for point in points if point.name in front)


def test_as_fast_within_noise_the_more_accurate_wins():
    points = [Point("a", 1.00, 0.90), Point("b", 1.01, 0.95), Point("c", 1.50, 0.95)]
    assert pareto_front(points) == ("a", "b")
    assert pareto_front(points, tie=0.02) == ("b",)
