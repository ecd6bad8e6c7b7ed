from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.compare.study.definition import balanced_orders


@given(st.integers(2, 6), st.integers(1, 20), st.integers(0, 2**32))
def test_every_arm_runs_once_a_block_and_has_every_position_as_often_as_the_others(count, blocks, seed):
    arms = [f"arm{number}" for number in range(count)]
    orders = balanced_orders(arms, blocks, seed)
    assert len(orders) == blocks
    assert all(sorted(order) == arms for order in orders)
    for position in range(count):
        times = Counter(order[position] for order in orders)
        assert max(times.values()) - min(times[arm] for arm in arms) <= 1
    assert orders == balanced_orders(arms, blocks, seed)


def test_orders_are_random_by_the_seed():
    firsts = Counter(balanced_orders("ab", 6, seed) for seed in range(500))
    # Three times each order: 20 arrangements, all about equally often.
    assert len(firsts) == 20
    assert max(firsts.values()) < 3 * min(firsts.values())
