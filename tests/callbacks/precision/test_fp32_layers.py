from __future__ import annotations

import copy
import pickle
import warnings
from typing import get_args, get_origin

import pytest
import torch
from torch import nn

from lightning_perf.callbacks.precision.autograd_graph import read_graph
from lightning_perf.callbacks.precision.fp32_layers import Fp32Layers, LayerPattern, find_layers
from lightning_perf.callbacks.precision.switch import PrecisionError
from lightning_perf.callbacks.precision_callback import PrecisionCallback
from tests.callbacks.precision_training import MODES, Recipe, fit, make_net


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.head = nn.ModuleDict({"a": nn.Linear(8, 2)})
        self.attention = nn.MultiheadAttention(8, 2)

    def forward(self, x: torch.Tensor, *, seen: dict[str, torch.dtype] | None = None) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
            if seen is not None:
                seen[f"layer {len(seen)}"] = x.dtype
        return self.head["a"](self.norm(x))


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["norm"], ["norm"]),
        ([nn.LayerNorm, "head.*"], ["norm", "head.a"]),
        (["layers"], ["layers.0", "layers.1"]),
        (["layers.[1-9]"], ["layers.1"]),
        ([nn.modules.batchnorm._BatchNorm, nn.Linear][1:], ["layers.0", "layers.1", "head.a"]),
    ],
)
def test_finds_layers_by_name_and_class(patterns, names):
    net = Block()
    del net.attention
    assert list(find_layers(net, patterns)) == names


def test_layers_are_found_inside_a_compiled_part():
    net = nn.ModuleDict({"net": torch.compile(Block())})
    assert list(find_layers(net, ["net.norm"])) == ["net.norm"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a", r"did you mean 'head.a'"),
        ("nrom", r"did you mean 'norm'"),
        ("transformer.wte", r"The model's layers are 'norm'"),
        (nn.Conv2d, r"keep_fp32 pattern torch.nn.*Conv2d matches no layer.*LayerNorm, Linear"),
        ("attention.out_proj", r"never called.*keep_fp32=\['attention'\]"),
    ],
)
def test_pattern_in_vain_is_an_error_with_the_fix(pattern, message):
    with pytest.raises(PrecisionError, match=message):
        find_layers(Block(), [pattern])


def test_scripted_layer_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript itself is deprecated
        net = nn.ModuleDict({"scripted": torch.jit.script(nn.Linear(2, 2))})
    with pytest.raises(PrecisionError, match="scripted is a TorchScript module"):
        find_layers(net, ["scripted"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kept_layer_computes_in_fp32_and_the_next_one_goes_on(dtype):
    net, seen = Block(), {}
    keys = list(net.state_dict())
    kept = Fp32Layers(net, ["layers.1"], "cpu")
    reference = nn.functional.linear
    with torch.autocast("cpu", dtype=dtype):
        x = torch.randn(3, 8)
        output = net(x, seen=seen)
        first = net.layers[0](x)
        alone = net.layers[1](first)
    assert list(seen.values()) == [dtype, torch.float32]
    assert output.dtype is dtype
    assert torch.equal(alone, reference(first.float(), net.layers[1].weight, net.layers[1].bias))
    assert list(net.state_dict()) == keys
    kept.undo()
    kept.undo()
    with torch.autocast("cpu", dtype=dtype):
        net(torch.randn(3, 8), seen=(again := {}))
    assert list(again.values()) == [dtype, dtype]
    assert "forward" not in vars(net.layers[1])


def test_nested_inputs_are_cast_and_others_left_alone():
    class Sink(nn.Module):
        def forward(self, pair, *, table, ids):
            self.seen = (pair[0].dtype, pair[1].dtype, table["x"].dtype, ids.dtype)
            return pair[0]

    net = nn.ModuleDict({"sink": Sink()})
    Fp32Layers(net, ["sink"], "cpu")
    half, double = torch.ones(1, dtype=torch.half), torch.ones(1, dtype=torch.double)
    net["sink"]((half, double), table={"x": half.bfloat16()}, ids=torch.ones(1, dtype=torch.long))
    assert net["sink"].seen == (torch.float32, torch.float64, torch.float32, torch.int64)


def test_forward_that_a_layer_had_of_its_own_comes_back():
    net = nn.ModuleDict({"fc": nn.Linear(2, 2)})
    own = net["fc"].forward = lambda x: x
    Fp32Layers(net, ["fc"], "cpu").undo()
    assert net["fc"].forward is own


@pytest.mark.parametrize("fullgraph", [True, False])
def test_compiles_and_undoes_under_compile(fullgraph):
    net = Block()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=fullgraph)
    x = torch.randn(3, 8)

    def layer_casts() -> int:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return compiled(x)

    plain = layer_casts()
    kept = Fp32Layers(net, ["layers", "head"], "cpu")
    assert torch.equal(layer_casts(), net(x))  # all in FP32
    kept.undo()
    assert torch.equal(layer_casts(), plain)
    torch.compiler.reset()


def test_copies_are_whole():
    net = Block()
    Fp32Layers(net, ["layers.0"], "cpu")
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        with torch.no_grad():
            other.layers[0].weight.zero_()
            other.layers[0].bias.zero_()
        assert other.layers[0](torch.ones(1, 8)).abs().sum() == 0
    assert net.layers[0](torch.ones(1, 8)).abs().sum() > 0


@pytest.mark.parametrize(("mode", "compiled"), [*((mode, False) for mode in MODES), ("bf16-mixed", True)])
def test_kept_in_training_and_shown_in_the_setting(tmp_path, fp16_on_cpu, mode, compiled) -> None:
    casts: list[int] = []

    def train(callback: PrecisionCallback) -> list[float]:
        module = make_net(Recipe(compiled=compiled))
        module.on_before_backward = lambda loss: casts.append(sum(read_graph(loss).casts.values()))
        return fit(tmp_path, callback, module, max_steps=2).losses

    kept = PrecisionCallback(mode, keep_fp32=["fc"])
    assert train(PrecisionCallback(mode)) != train(kept)
    assert kept.setting is not None
    assert kept.setting.keep_fp32 == ("fc",)
    # Weight and bias of two layers, then of one; compiled code does not show its casts.
    assert casts == ([0] * 4 if compiled else [4, 4, 2, 2])


def test_a_command_line_takes_a_dotted_path_for_a_class() -> None:
    """LightningCLI's parser tries the types of a union in order, and any text is a name."""
    assert [get_origin(kind) or kind for kind in get_args(LayerPattern)] == [type, str]
