from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.transforms.base import weight_layers
from lightning_perf.inference.transforms.pruning import Sparsify
from lightning_perf.inference.variants.chains import measure_storage
from tests.inference.transforms.support import Trainer, small_network, subject_of


def all_weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([layer.weight.detach().flatten() for layer in weight_layers(module)])


def test_the_smallest_weights_of_all_layers_are_zero_and_the_others_as_before():
    module = small_network()
    sparse = Sparsify(50).apply(module, subject_of(module), None)
    before, after = all_weights(module), all_weights(sparse)
    smallest = before.abs().argsort()[: round(0.5 * len(before))]
    expected = before.clone()
    expected[smallest] = 0
    assert torch.equal(after, expected)
    assert torch.equal(sparse[2].norm.weight, module[2].norm.weight)
    assert measure_storage(sparse).packed_bytes < 0.6 * measure_storage(module).packed_bytes


def test_fine_tuning_leaves_zeros_zero_and_moves_the_others():
    module = small_network()
    subject = subject_of(module)
    sparse = Sparsify(90).apply(module, subject, Trainer(subject, steps=3))
    before, after = all_weights(module), all_weights(sparse)
    kept = after != 0
    assert (~kept).sum() == round(0.9 * len(before))
    assert (after[kept] != before[kept]).float().mean() > 0.5
    # No trace of the pruning is left: it can be copied and has its own weights only.
    assert set(copy.deepcopy(sparse).state_dict()) == set(module.state_dict())


def test_much_needs_training_and_a_model_needs_layers():
    assert Sparsify(51).needs_training
    assert not Sparsify(50).needs_training
    module = small_network()
    with pytest.raises(VariantError, match="sparsify-90 needs training data"):
        Sparsify(90).apply(module, subject_of(module), None)
    with pytest.raises(VariantError, match="no linear layers"):
        Sparsify(50).apply(nn.Flatten(), subject_of(nn.Flatten()), None)
