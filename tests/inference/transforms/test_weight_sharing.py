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


def test_the_size_follows_the_bits():
    module = small_network()
    dense = measure_storage(module).dense_bytes
    sizes = {bits: measure_storage(Share(bits).apply(module, subject_of(module), None)) for bits in (4, 5)}
    assert sizes[4].dense_bytes == sizes[5].dense_bytes == dense
    shared = [p.numel() for p in module.parameters() if p.ndim >= 2]
    for bits, storage in sizes.items():
        rest = dense - 4 * sum(shared)
        formula = rest + sum(n * bits / 8 + 4 * 2**bits for n in shared)
        assert storage.packed_bytes == pytest.approx(formula, rel=0.1)
        assert storage.packed_bytes < storage.gzip_bytes


def test_a_pruned_model_keeps_its_zeros_nearly():
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 64)).eval()
    with torch.no_grad():
        module[1].weight[:, :40] = 0
    shared = Share(5).apply(module, subject_of(module), None)
    assert shared[1].weight[:, :40].abs().max() < 0.01


def test_nothing_to_share_is_a_reason():
    with pytest.raises(VariantError, match="has no layer with more than 16 weights"):
        Share(4).apply(nn.Flatten(), subject_of(nn.Flatten()), None)
    broken = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with torch.no_grad():
        broken[1].weight[0, 0] = float("nan")
    with pytest.raises(VariantError, match="NaN or infinite"):
        Share(4).apply(broken, subject_of(broken), None)
