from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from lightning_perf.inference.counting.count import count_model
from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.transforms.base import weight_layers
from lightning_perf.inference.transforms.pruning import Prune, Sparsify
from lightning_perf.inference.variants.chains import measure_storage
from tests.inference.transforms.support import Trainer, small_network, subject_of

pytest.importorskip("torch_pruning", reason="needs the infer extra")


def test_channels_go_everywhere_and_the_classifier_keeps_its_outputs():
    module = small_network()
    subject = subject_of(module)
    trainer = Trainer(subject, steps=1)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    pruned = Prune(50).apply(module, subject, trainer)
    block = pruned[2]
    assert pruned[0].out_channels == block.first.in_channels == block.second.out_channels == 8
    assert block.first.out_channels == block.norm.num_features == block.second.in_channels == 8
    assert (pruned[5].in_features, pruned[5].out_features) == (8 * 4, 16)
    assert pruned[7].out_features == 10
    assert not pruned.training
    assert [teacher for _, teacher in trainer.calls] == [None]
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    # In and out channels of the block's convolutions are halved.
    macs = {layer.path: layer.macs for layer in count_model(module, (1, 8, 8)).layers}
    less = {layer.path: layer.macs for layer in count_model(pruned, (1, 8, 8)).layers}
    assert less["2.first"] * 4 == macs["2.first"]
    assert less["0"] * 2 == macs["0"]


def test_the_weakest_channels_go():
    module = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 4)).eval()
    strong = torch.tensor([1, 3, 4, 7, 8, 10, 13, 15])
    with torch.no_grad():
        module[0].weight.mul_(0.01)
        module[0].weight[strong] = 1.0
    pruned = Prune(50).apply(module, subject_of(module), lambda changed, _: changed)
    assert pruned[0].weight.shape == (8, 1, 3, 3)
    assert (pruned[0].weight == 1).all()
    assert torch.equal(pruned[0].bias, module[0].bias[strong])


def test_a_pruned_model_can_be_saved_whole_and_frozen_models_are_pruned():
    module = small_network().requires_grad_(False)
    inputs = torch.zeros(1, 1, 8, 8)
    with torch.no_grad():
        pruned = Prune(25).apply(module, subject_of(module), lambda changed, _: changed)
    again = pickle.loads(pickle.dumps(pruned))
    assert torch.equal(again(inputs), pruned(inputs))
    assert all(parameter.grad is None for parameter in pruned.parameters())


def test_what_cannot_be_pruned_is_a_reason():
    small = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Linear(4, 4))
    with pytest.raises(VariantError, match="prune-25 removes nothing"):
        Prune(25).apply(small, subject_of(small), lambda changed, _: changed)
    with pytest.raises(VariantError, match="prune-50 needs training data"):
        Prune(50).apply(small, subject_of(small), None)


class Heads(nn.Module):
    """Has a bare parameter, and the number of channels in its code, as vision transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(64, 64)
        self.position = nn.Parameter(torch.zeros(1, 64))
        self.project = nn.Linear(64, 96)
        self.head = nn.Linear(32, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(self.embed(inputs.flatten(1)) + self.position).reshape(-1, 3, 32).unbind(1)
        return self.head(query * key + value)


def test_a_model_that_cannot_be_followed_is_a_reason_without_noise(capfd: pytest.CaptureFixture[str]):
    torch.manual_seed(0)  # which channels go depends on the weights, and some choices happen to fit
    with pytest.raises(VariantError, match=r"torch-pruning cannot follow|after prune-50 the model does not run"):
        Prune(50).apply(Heads(), subject_of(Heads()), lambda changed, _: changed)
    assert capfd.readouterr() == ("", "")


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
    assert measure_storage(sparse).gzip_bytes < 0.7 * measure_storage(module).gzip_bytes


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
