"""Each transform changes a copy as its paper says, trains it if it has to, and gives a reason if it cannot."""

import copy
import pickle
import sys
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from lightning_perf.inference.counting.count import count_model
from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.model import Subject
from lightning_perf.inference.transforms import (
    Distil,
    Prune,
    Separable,
    Share,
    Sparsify,
    cluster,
    separate,
    weight_layers,
)
from lightning_perf.inference.variants.variant import TRANSFORM_NAMES, find_transform, measure_storage
from tests.inference.support import small_network, student, subject_of


class Trainer:
    """Stands for fine-tuning: notes what it was given and trains a few steps towards given outputs."""

    def __init__(self, subject: Subject, steps: int = 0) -> None:
        self.subject, self.steps = subject, steps
        self.calls: list[tuple[nn.Module, nn.Module | None]] = []

    def __call__(self, module: nn.Module, teacher: nn.Module | None) -> nn.Module:
        self.calls.append((module, teacher))
        module.train()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        for _ in range(self.steps):
            optimizer.zero_grad()
            module(self.subject.inputs.clone()).square().mean().backward()
            optimizer.step()
        return module


def untrained(module: nn.Module, _: nn.Module | None) -> nn.Module:
    return module


def macs_of(module: nn.Module) -> dict[str, int]:
    return {layer.path: layer.macs for layer in count_model(module, (1, 8, 8)).layers}


@pytest.mark.parametrize("name", [*TRANSFORM_NAMES, "prune-1", "prune-95", "sparsify-99", "share-8bit"])
def test_names_find_what_they_name(name: str):
    transform = find_transform(name)
    assert transform.name == name
    assert transform.summary


@pytest.mark.parametrize("name", ["prune-0", "prune-96", "sparsify-100", "share-0bit", "share-9bit"])
def test_numbers_out_of_range_are_errors(name: str):
    with pytest.raises(InferenceError, match="must be from 1 to"):
        find_transform(name)


@pytest.mark.parametrize("name", ["prune", "prune-x", "share-4", "", "eager", "distil-", "Prune-50", "distil-cnn"])
def test_unknown_names_list_what_there_is(name: str):
    with pytest.raises(InferenceError, match=r"prune-25, prune-50.* distil, distil-vit, alone-vit"):
        find_transform(name, {"vit": student})


def test_a_missing_package_is_named(monkeypatch):
    assert find_transform("share-4bit").missing() is None
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    assert "torch_pruning is not installed" in (find_transform("prune-50").missing() or "")


@pytest.mark.parametrize("name", ["prune-50", "sparsify-90", "separable", "distil", "distil-tiny", "alone-tiny"])
def test_a_model_that_would_be_useless_needs_training(name: str):
    module = small_network()
    with pytest.raises(VariantError, match=f"{name} needs training data"):
        find_transform(name, {"tiny": student}).apply(module, subject_of(module), None)


@pytest.mark.parametrize("name", ["distil-tiny", "alone-tiny"])
def test_a_named_student_is_trained_with_or_without_the_original(name):
    module = small_network()
    subject = subject_of(module)
    trainer = Trainer(subject)
    made = find_transform(name, {"tiny": student}).apply(module, subject, trainer)
    ((trained, teacher),) = trainer.calls
    assert made is trained
    assert teacher is (module if name == "distil-tiny" else None)
    assert len(list(made.children())) == 2
    assert not made.training


def test_what_came_before_learns_from_the_original_and_is_left_as_it_is():
    module, changed = small_network(), student()
    subject = subject_of(module)
    trainer = Trainer(subject, steps=1)
    before = changed[1].weight.clone()
    made = Distil().apply(changed, subject, trainer)
    assert trainer.calls[0][1] is module
    assert torch.equal(changed[1].weight, before)
    assert not torch.equal(made[1].weight, before)


def test_bad_students_are_reasons():
    module = small_network()
    subject = subject_of(module)
    trainer = Trainer(subject)
    for transform, said in (
        (Distil(), "distil needs a student"),
        (Distil("tiny", lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3))), r"have shape \(2, 3\), not \(2, 10\)"),
        (Distil("tiny", lambda: nn.Linear(3, 10)), "does not run"),
    ):
        with pytest.raises(VariantError, match=said):
            transform.apply(module, subject, trainer)
    assert not trainer.calls


def test_channels_go_everywhere_and_the_classifier_keeps_its_outputs():
    pytest.importorskip("torch_pruning", reason="needs the infer extra")
    module = small_network()
    subject = subject_of(module)
    trainer = Trainer(subject, steps=1)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    pruned = Prune(50).apply(module, subject, trainer)
    block = pruned[2]
    assert pruned[0].out_channels == block.first.in_channels == block.second.out_channels == 8
    assert block.first.out_channels == block.norm.num_features == block.second.in_channels == 8
    assert (pruned[5].in_features, pruned[5].out_features, pruned[7].out_features) == (8 * 4, 16, 10)
    assert not pruned.training
    assert [teacher for _, teacher in trainer.calls] == [None]
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    macs, less = macs_of(module), macs_of(pruned)
    assert less["2.first"] * 4 == macs["2.first"]  # its in and out channels are halved
    assert less["0"] * 2 == macs["0"]


def test_the_weakest_channels_go():
    pytest.importorskip("torch_pruning", reason="needs the infer extra")
    module = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 4)).eval()
    strong = torch.tensor([1, 3, 4, 7, 8, 10, 13, 15])
    with torch.no_grad():
        module[0].weight.mul_(0.01)
        module[0].weight[strong] = 1.0
    pruned = Prune(50).apply(module, subject_of(module), untrained)
    assert pruned[0].weight.shape == (8, 1, 3, 3)
    assert (pruned[0].weight == 1).all()
    assert torch.equal(pruned[0].bias, module[0].bias[strong])


def test_a_pruned_model_can_be_saved_whole_and_frozen_models_are_pruned():
    pytest.importorskip("torch_pruning", reason="needs the infer extra")
    module = small_network().requires_grad_(False)
    inputs = torch.zeros(1, 1, 8, 8)
    with torch.no_grad():
        pruned = Prune(25).apply(module, subject_of(module), untrained)
    again = pickle.loads(pickle.dumps(pruned))
    assert torch.equal(again(inputs), pruned(inputs))
    assert all(parameter.grad is None for parameter in pruned.parameters())


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


def test_what_cannot_be_pruned_is_a_reason_without_noise(capfd: pytest.CaptureFixture[str]):
    pytest.importorskip("torch_pruning", reason="needs the infer extra")
    small = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Linear(4, 4))
    with pytest.raises(VariantError, match="prune-25 removes nothing"):
        Prune(25).apply(small, subject_of(small), untrained)
    torch.manual_seed(0)  # which channels go depends on the weights, and some choices happen to fit
    with pytest.raises(VariantError, match=r"torch-pruning cannot follow|after prune-50 the model does not run"):
        Prune(50).apply(Heads(), subject_of(Heads()), untrained)
    assert capfd.readouterr() == ("", "")


def all_weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([layer.weight.detach().flatten() for layer in weight_layers(module)])


def test_the_smallest_weights_of_all_layers_are_zero_and_the_others_as_before():
    module = small_network()
    sparse = Sparsify(50).apply(module, subject_of(module), None)
    before, after = all_weights(module), all_weights(sparse)
    expected = before.clone()
    expected[before.abs().argsort()[: round(0.5 * len(before))]] = 0
    assert torch.equal(after, expected)
    assert torch.equal(sparse[2].norm.weight, module[2].norm.weight)
    assert measure_storage(sparse).gzip_bytes < 0.7 * measure_storage(module).gzip_bytes
    with pytest.raises(VariantError, match="no linear layers"):
        Sparsify(50).apply(nn.Flatten(), subject_of(nn.Flatten()), None)


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
    assert [Sparsify(percent).needs_training for percent in (50, 51)] == [False, True]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(6, 8, 5, stride=2, padding=2), (6, 20)),
        (nn.Conv2d(6, 8, 3, padding=1, padding_mode="reflect"), (6, 9, 9)),
        (nn.Conv2d(6, 8, (1, 5), dilation=(1, 2), bias=False), (6, 9, 12)),
        (nn.Conv3d(6, 8, 3, padding="same"), (6, 5, 5, 5)),
    ],
)
def test_a_convolution_that_is_separable_is_separated_exactly(
    layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, shape: tuple[int, ...]
):
    torch.manual_seed(0)
    kernel = layer.weight.shape[2:]
    with torch.no_grad():
        layer.weight.copy_(torch.randn(8, 6, *[1] * len(kernel)) * torch.randn(1, 6, *kernel))
        inputs = torch.randn(2, *shape)
        torch.testing.assert_close(separate(layer)(inputs), layer(inputs), rtol=1e-4, atol=1e-4)


def test_any_other_is_separated_as_well_as_possible():
    torch.manual_seed(0)
    layer = nn.Conv2d(5, 7, 3, bias=False)
    depthwise, pointwise = separate(layer)
    product = (pointwise.weight * depthwise.weight.transpose(0, 1)).detach()  # (7, 5, 3, 3)
    for channel in range(5):
        matrix = layer.weight[:, channel].detach().flatten(1)
        rest = torch.linalg.svdvals(matrix)[1:].square().sum()
        error = (product[:, channel].flatten(1) - matrix).square().sum()
        torch.testing.assert_close(error, rest, rtol=1e-4, atol=1e-5)


def test_macs_shrink_by_the_formula_and_the_first_layer_stays():
    module = small_network()
    subject = subject_of(module)
    trainer = Trainer(subject, steps=1)
    changed = Separable().apply(module, subject, trainer)
    assert type(changed[0]) is type(module[2].first) is nn.Conv2d
    assert changed[2].first[0].groups == 16
    macs, less = macs_of(module), macs_of(changed)
    assert less["2.first.0"] + less["2.first.1"] == pytest.approx(macs["2.first"] * (1 / 16 + 1 / 9))
    assert len(trainer.calls) == 1
    assert not changed.training


def test_a_layer_used_twice_stays_one_layer_and_a_lone_convolution_is_replaced():
    layer = nn.Conv2d(8, 8, 3, padding=1)
    twice = nn.Sequential(layer, nn.ReLU(), layer)
    inputs = torch.rand(4, 8, 6, 6)
    changed = Separable().apply(twice, subject_of(twice, inputs), untrained)
    assert changed[0] is changed[2]
    assert isinstance(Separable().apply(layer, subject_of(layer, inputs), untrained), nn.Sequential)
    for module in (nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(1, 8, 3)):
        with pytest.raises(VariantError, match="has no dense convolution"):
            Separable().apply(module, subject_of(module, inputs[:, : module.in_channels]), untrained)


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
@given(arrays(np.float32, st.integers(1, 60), elements=st.floats(-1e6, 1e6, width=32)), st.integers(1, 20))
def test_each_value_gets_its_nearest(values: np.ndarray, k: int):
    codebook, indices = cluster(values, k)
    assert len(codebook) <= k
    assert (np.diff(codebook) > 0).all()
    distances = np.abs(values.astype(float)[:, None] - codebook.astype(float))
    assert (distances[np.arange(len(values)), indices] == distances.min(axis=1)).all()


@pytest.mark.parametrize(("bits", "most_error"), [(1, 0.5), (4, 0.02), (5, 0.006)])  # of uniform weights: 1/4**bits
def test_layers_have_few_values_near_the_old_ones(bits: int, most_error: float):
    module = small_network()
    shared = Share(bits).apply(module, subject_of(module), None)
    for (name, before), after in zip(module.named_parameters(), shared.parameters(), strict=True):
        if before.ndim < 2 or before.numel() <= 2**bits:
            assert torch.equal(before, after), name
            continue
        assert len(after.unique()) <= 2**bits
        assert (before - after).square().mean() / before.var() < most_error


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
