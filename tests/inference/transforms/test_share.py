from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.transforms.weight_sharing import Share
from lightning_perf.inference.variants.chains import measure_storage
from tests.inference.transforms.support import small_network, subject_of


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
    with pytest.raises(VariantError, match="finds no layer with more than 16 weights"):
        Share(4).apply(nn.Flatten(), subject_of(nn.Flatten()), None)
    broken = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with torch.no_grad():
        broken[1].weight[0, 0] = float("nan")
    with pytest.raises(VariantError, match="not finite"):
        Share(4).apply(broken, subject_of(broken), None)
