"""The order of a study's runs: every arm once a block, positions balanced over blocks, otherwise random."""

from __future__ import annotations

import random
from collections.abc import Sequence

__all__ = ["balanced_orders"]


def balanced_orders(arms: Sequence[str], blocks: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """Draw the order of the arms within each block.

    Of two arms, AB and BA come equally often (one more of either when the blocks are odd in number); of k arms each
    has every position once in any k blocks of a group (a Latin square with shuffled rows and columns). Drift over the
    study then hits all arms alike, and no arm profits from coming first.

    Args:
        arms: Names of the arms.
        blocks: Number of blocks.
        seed: The same seed gives the same orders.

    Returns:
        For each block the names in the order in which they run.

    Example:
        >>> orders = balanced_orders(("fp32", "amp"), 4, seed=0)
        >>> sorted(orders)
        [('amp', 'fp32'), ('amp', 'fp32'), ('fp32', 'amp'), ('fp32', 'amp')]
    """
    rng = random.Random(seed)
    orders: list[tuple[str, ...]] = []
    size = len(arms)
    while len(orders) < blocks:
        columns = rng.sample(list(arms), size)
        shifts = rng.sample(range(size), size)
        orders.extend(tuple(columns[(position + shift) % size] for position in range(size)) for shift in shifts)
    # Groups of k blocks in sequence would make the last block of each predictable: shuffle over the whole study, but
    # only when the last group is whole, or the shuffle could drop one position's balance.
    if blocks % size == 0:
        rng.shuffle(orders)
    return tuple(orders[:blocks])
