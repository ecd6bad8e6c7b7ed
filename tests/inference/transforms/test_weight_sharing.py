from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lightning_perf.inference.transforms.weight_sharing import cluster


def loss(values: np.ndarray, codebook: np.ndarray, indices: np.ndarray) -> float:
    return float(np.square(values.astype(float) - codebook[indices].astype(float)).sum())


def best_loss(values: np.ndarray, k: int) -> float:
    """By brute force: on one axis the best clusters are runs of the sorted values."""
    ordered = np.sort(values).astype(float)
    return min(
        sum(((run - run.mean()) ** 2).sum() for run in np.split(ordered, cuts))
        for cuts in combinations(range(1, len(ordered)), k - 1)
    )


def test_separate_groups_are_found_exactly():
    values = np.array([9.0, -1.1, 0.2, -0.9, 9.2, 0.0, -1.0, 8.8], dtype=np.float32)
    codebook, indices = cluster(values, 3)
    assert codebook == pytest.approx([-1.0, 0.1, 9.0])
    assert indices.tolist() == [2, 0, 1, 0, 2, 1, 0, 2]
    assert loss(values, codebook, indices) == pytest.approx(best_loss(values, 3))


@pytest.mark.parametrize("k", [2, 3])
def test_random_values_come_close_to_the_best(k: int):
    values = np.random.default_rng(k).normal(size=14).astype(np.float32)
    assert loss(values, *cluster(values, k)) <= 1.6 * best_loss(values, k)


@pytest.mark.parametrize(("k", "distortion"), [(2, 0.3634), (4, 0.1175), (8, 0.03454), (16, 0.009497), (32, 0.002499)])
def test_normal_values_reach_the_known_optimum(k: int, distortion: float):
    """Mean squared error of the best quantiser of a normal distribution: Max 1960, doi:10.1109/TIT.1960.1057548."""
    values = np.random.default_rng(0).normal(size=200_000).astype(np.float32)
    assert loss(values, *cluster(values, k)) / len(values) == pytest.approx(distortion, rel=0.03)


def test_it_has_settled_and_agrees_with_scipy():
    vq = pytest.importorskip("scipy.cluster.vq", reason="needs scipy")
    values = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    codebook, indices = cluster(values, 16)
    for number, centre in enumerate(codebook):
        assert centre == pytest.approx(values[indices == number].mean(), abs=1e-3)
    quantiles = np.quantile(values.astype(float), (np.arange(16) + 0.5) / 16)
    theirs, _ = vq.kmeans(values.astype(float)[:, None], quantiles[:, None], thresh=1e-12)
    assert codebook == pytest.approx(theirs[:, 0], abs=0.02)


@settings(max_examples=80, deadline=None)
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
