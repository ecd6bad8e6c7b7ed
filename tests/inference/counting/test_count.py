"""Counts of whole networks against a second implementation with hooks, and of layers by hand; bytes, rows, errors."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_perf.inference.counting.count import count_model
from lightning_perf.inference.errors import InferenceError


def article_network() -> nn.Sequential:
    """An article's MNIST network: two convolutions of five 3×3 kernels, dense layers of 128 and 10."""
    return nn.Sequential(
        nn.Conv2d(1, 5, 3),
        nn.ReLU(),
        nn.Conv2d(5, 5, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(5 * 24 * 24, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def test_the_articles_network_has_the_sum_of_its_terms_and_not_the_total_that_it_prints():
    count = count_model(article_network(), (1, 28, 28))
    terms = [60_840, 259_200, 737_280, 2_560]
    assert [layer.flops for layer in count.layers if layer.flops] == terms
    assert count.flops == sum(terms) == 1_059_880 != 1_060_400
    assert count.macs == 529_940


def by_hooks(module: nn.Module, inputs: Tensor) -> dict[str, int]:
    """A second count: the formulas of convolutions and linear layers, from shapes seen on real tensors."""
    macs: dict[str, int] = {}

    def note(path: str, layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        if isinstance(layer, nn.Linear):
            macs[path] = output.numel() * layer.in_features
        elif isinstance(layer, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
            macs[path] = arguments[0].numel() * weight[0].numel()
        else:
            macs[path] = output.numel() * weight[0].numel()

    handles = [
        layer.register_forward_hook(lambda *call, path=path: note(path, *call))
        for path, layer in module.named_modules()
        if isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd))
    ]
    with torch.inference_mode():
        module.eval()(inputs)
    for handle in handles:
        handle.remove()
    return macs


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_layers_of_real_networks_agree_with_hooks(name: str):
    torchvision = pytest.importorskip("torchvision", reason="needs the recipes extra")
    module = torchvision.models.get_model(name, weights=None)
    count = count_model(module, (3, 64, 64))
    assert {layer.path: layer.macs for layer in count.layers if layer.macs} == by_hooks(
        module, torch.zeros(1, 3, 64, 64)
    )
    assert count.parameters == sum(p.numel() for p in module.parameters())
    assert not count.uncounted


def test_resnet18_at_224():
    torchvision = pytest.importorskip("torchvision", reason="needs the recipes extra")
    count = count_model(torchvision.models.resnet18(weights=None), (3, 224, 224))
    assert count.macs == 1_814_073_344
    assert count.parameters == 11_689_512
    assert (count.output_shape, count.unused_parameters) == ((1, 1000), 0)
    assert len([layer for layer in count.layers if layer.kind == "Conv2d"]) == 20
    assert len([layer for layer in count.layers if layer.kind == "BasicBlock"]) == 8  # the additions of the shortcuts


def test_bytes_are_inputs_outputs_and_weights():
    count = count_model(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)), (3, 10, 10))
    convolution, norm, relu = count.layers
    outputs = 8 * 8 * 8
    assert convolution.bytes_moved == 4 * (3 * 100 + (8 * 27 + 8) + outputs)
    assert norm.bytes_moved == 4 * (outputs + 4 * 8 + outputs)
    assert relu.bytes_moved == 4 * 2 * outputs
    assert count.bytes_moved == sum(layer.bytes_moved for layer in count.layers)
    # The counter of batches in the norm is not read in evaluation, but is a part of the size.
    assert count.compulsory_bytes == 4 * (3 * 100 + (8 * 27 + 8) + 4 * 8 + outputs)
    assert count.size_bytes == 4 * (8 * 27 + 8 + 4 * 8) + 8
    assert convolution.arithmetic_intensity == pytest.approx(2 * 8 * 64 * 27 / convolution.bytes_moved)


class Shared(nn.Module):
    """One layer twice, an addition of its own, a view, and a layer that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 100)

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.layer(self.layer(inputs)) + inputs).view(-1, 2, 2)


def test_a_layer_that_runs_twice_counts_twice_and_owns_its_parameters_once():
    count = count_model(Shared(), (4,))
    own, layer = count.layers  # in the order of their first call: the model is called before its layer
    assert (layer.path, layer.calls, layer.macs, layer.parameters) == ("layer", 2, 2 * 16, 20)
    assert (own.path, own.flops, own.bytes_moved) == ("", 0, 4 * 3 * 4)
    assert count.unused_parameters == 500
    assert count.parameters == 520


def test_a_model_that_looks_at_its_data_is_counted_on_the_cpu_with_the_same_result():
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 16, batch_first=True)
            self.attention = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

        def forward(self, inputs: Tensor) -> Tensor:
            if inputs.sum().item() < -1:
                raise AssertionError
            return self.attention(self.lstm(inputs)[0])

    count = count_model(Looks(), (5, 8))
    attention = 4 * 5 * 16 * 16 + 2 * 5 * 5 * 16 + 2 * 5 * 16 * 32
    assert count.macs == 5 * 4 * 16 * (8 + 16) + attention
    assert {layer.kind for layer in count.uncounted} <= {"Looks"}
    assert torch.backends.mkldnn.enabled
    assert torch.backends.mha.get_fastpath_enabled()


def test_the_model_stays_as_it_is():
    module = article_network().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    count_model(module, (1, 28, 28))
    assert all(layer.training for layer in module.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_half_precision_halves_the_bytes():
    single, half = (count_model(nn.Linear(64, 64).to(dtype), (64,)) for dtype in (torch.float32, torch.bfloat16))
    assert half.macs == single.macs
    assert 2 * half.bytes_moved == single.bytes_moved


def test_a_wrong_shape_is_an_error_with_the_shape():
    with pytest.raises(InferenceError, match=r"Sequential cannot be counted with an input of shape \(1, 3, 28, 28\)"):
        count_model(article_network(), (3, 28, 28))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is (not supported|deprecated)")
def test_a_torchscript_module_is_refused():
    scripted = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(InferenceError, match="TorchScript"):
        count_model(scripted, (2,))


HAND = {
    # name: (module, input without batch, MACs of one input)
    "linear": (nn.Linear(10, 7), (10,), 10 * 7),
    "conv1d": (nn.Conv1d(3, 8, 5, padding=2), (3, 20), 20 * 8 * 3 * 5),
    "conv2d": (nn.Conv2d(3, 8, 3), (3, 10, 12), 8 * 10 * 8 * 3 * 9),
    "conv3d": (nn.Conv3d(2, 4, 3, padding=1), (2, 5, 6, 7), 5 * 6 * 7 * 4 * 2 * 27),
    "grouped": (nn.Conv2d(6, 8, 3, groups=2, padding=1), (6, 9, 9), 81 * 8 * 3 * 9),
    "depthwise": (nn.Conv2d(6, 6, 3, groups=6, padding=1), (6, 9, 9), 81 * 6 * 9),
    "strided": (nn.Conv2d(3, 4, 3, stride=2, padding=1), (3, 11, 11), 6 * 6 * 4 * 3 * 9),
    # Each number of the input meets each weight of its channel once, wherever the products land.
    "transposed": (nn.ConvTranspose2d(3, 4, 3, stride=2), (3, 5, 5), 25 * 3 * 4 * 9),
    "transposed, grouped": (nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2), (4, 5, 5), 25 * 4 * 3 * 4),
    "batch norm": (nn.BatchNorm2d(4), (4, 5, 5), 0),
    "layer norm": (nn.LayerNorm(5), (4, 5), 0),
    # Four gates, each input to hidden and hidden to hidden, at 5 steps.
    "lstm": (nn.LSTM(8, 16, batch_first=True), (5, 8), 5 * 4 * 16 * (8 + 16)),
    "lstm, two layers, both ways": (
        nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True),
        (5, 8),
        5 * 2 * (4 * 16 * (8 + 16) + 4 * 16 * (32 + 16)),
    ),
    "lstm with projection": (nn.LSTM(8, 16, batch_first=True, proj_size=6), (5, 8), 5 * (4 * 16 * (8 + 6) + 16 * 6)),
    "gru": (nn.GRU(8, 16, batch_first=True), (5, 8), 5 * 3 * 16 * (8 + 16)),
    "gru cell": (nn.GRUCell(8, 16), (8,), 3 * 16 * (8 + 16)),
    "bilinear resampling": (nn.Upsample(scale_factor=2, mode="bilinear"), (3, 4, 4), 0),
    # Query, key, value and output projections; then scores and weighted values, both tokens² · width over all heads.
    "transformer layer": (
        nn.TransformerEncoderLayer(32, 4, 64, batch_first=True),
        (7, 32),
        4 * 7 * 32 * 32 + 2 * 7 * 7 * 32 + 2 * 7 * 32 * 64,
    ),
}


@pytest.mark.parametrize("name", HAND)
def test_macs_are_those_counted_by_hand(name: str):
    module, shape, macs = HAND[name]
    for batch in (1, 3):
        count = count_model(module, shape, batch)
        assert count.macs == batch * macs
        assert count.flops == 2 * count.macs
        assert not count.uncounted


class Attention(nn.Module):
    """Causal self-attention of 4 heads by the functional form."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(32, 96)

    def forward(self, tokens: Tensor) -> Tensor:
        n, length, _ = tokens.shape
        q, k, v = self.project(tokens).view(n, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_functional_attention_counts_for_the_module_that_calls_it():
    count = count_model(Attention(), (7, 32), batch=2)
    rows = {layer.path: layer for layer in count.layers}
    assert rows["project"].macs == 2 * 7 * 32 * 96
    assert rows[""].macs == 2 * 2 * 7 * 7 * 32  # the whole square, although it is masked
    assert rows[""].kind == "Attention"


def test_an_operator_without_a_formula_is_named():
    class Cdist(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return torch.fft.fft(inputs).abs()

    count = count_model(Cdist(), (5, 8))
    (row,) = count.uncounted
    assert any("fft" in name for name in row.uncounted)


def test_products_that_torch_has_no_formula_for_are_counted():
    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.zeros(3, 6))

        def forward(self, inputs: Tensor) -> Tensor:
            return torch.mv(self.matrix, inputs[0]) + torch.dot(inputs[0], inputs[0])

    assert count_model(Products(), (6,)).macs == 3 * 6 + 6
