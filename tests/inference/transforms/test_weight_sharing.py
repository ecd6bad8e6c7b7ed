from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.transforms.weight_sharing import Share, cluster
from lightning_perf.inference.variants.chains import measure_storage
from tests.inference.transforms.support import small_network, subject_of


def loss(values: np.ndarray, codebook: np.ndarray, indices: np.ndarray) -> float:
    return float(np.square(values.astype(float) - codebook[indices].astype(float)).sum())


def best_loss(values: np.ndarray, k: int) -> float:
    """By brute force: on one axis the best clusters are runs of the sorted values."""
    ordered = np.sort(values).astype(float)
    return min(
        sum(((run - run.mean()) ** 2).sum() for run in np.split(ordered, cuts))
        for cuts in combinations(range(1, len(ordered)), k - 1)
    )


@pytest.mark.parametrize("k", [2, 3])
def test_random_values_come_close_to_the_best(k: int):
    values = np.random.default_rng(k).normal(size=14).astype(np.float32)
    assert loss(values, *cluster(values, k)) <= 1.6 * best_loss(values, k)


@pytest.mark.parametrize(("k", "distortion"), [(2, 0.3634), (8, 0.03454), (32, 0.002499)])
def test_normal_values_reach_the_known_optimum(k: int, distortion: float):
    """Mean squared error of the best quantiser of a normal distribution: Max 1960, doi:10.1109/TIT.1960.1057548."""
    values = np.random.default_rng(0).normal(size=200_000).astype(np.float32)
    assert loss(values, *cluster(values, k)) / len(values) == pytest.approx(distortion, rel=0.03)


@settings(max_examples=40, deadline=None)
@given(
    arrays(np.float32, st.integers(1, 60), elements=st.floats(-1e6, 1e6, width=32)),
    st.integers(1, 20),
)
def test_each_value_gets_its_nearest(values: np.ndarray, k: int):
    codebook, indices = cluster(values, k)
    assert len(codebook) <= k
    assert (np.diff(codebook) > 0).all()
    distances = np.abs(values.astype(float)[:, None] - codebook.astype(float))
    assert (distances[np.arange(len(values)), indices] == distances.min(axis=1)).all()


@pytest.mark.parametrize("bits", [1, 4, 5])
def test_layers_have_few_values_near_the_old_ones(bits: int):
    module = small_network()
    shared = Share(bits).apply(module, subject_of(module), None)
    for (name, before), after in zip(module.named_parameters(), shared.parameters(), strict=True):
        if before.ndim < 2 or before.numel() <= 2**bits:
            assert torch.equal(before, after), name
            continue
        assert len(after.unique()) <= 2**bits
        error = (before - after).square().mean() / before.var()
        assert error < {1: 0.5, 4: 0.02, 5: 0.006}[bits]  # of uniform weights: 1/4**bits


def test_the_compressed_size_follows_the_bits():
    module = small_network()
    four, five = (measure_storage(Share(bits).apply(module, subject_of(module), None)) for bits in (4, 5))
    dense = measure_storage(module)
    assert four.dense_bytes == five.dense_bytes == dense.dense_bytes
    assert four.gzip_bytes < five.gzip_bytes < 0.5 * dense.gzip_bytes


def test_nothing_to_share_is_a_reason():
    with pytest.raises(VariantError, match="has no layer with more than 16 weights"):
        Share(4).apply(nn.Flatten(), subject_of(nn.Flatten()), None)
    broken = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with torch.no_grad():
        broken[1].weight[0, 0] = float("nan")
    with pytest.raises(VariantError, match="NaN or infinite"):
        Share(4).apply(broken, subject_of(broken), None)
