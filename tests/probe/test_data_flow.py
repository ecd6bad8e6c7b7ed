"""The calls that a probe makes, against the operators that torch really runs in the other setting."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_perf.probe.replay.arguments import Bound, TensorInfo
from lightning_perf.probe.replay.data_flow import follow, grown_place, is_channels_last
from lightning_perf.probe.replay.messages import CURRENT, Setting
from tests.probe.recorded import NETWORKS, calls_of, labels_of, loss_of
from tests.support.operators import Operators

VIEWS = {"detach", "view", "t", "transpose", "expand", "squeeze", "unsqueeze", "select", "permute", "_unsafe_view"}
IN_16_BITS = ("convolutions", "attention")
"""Not the LSTM: its operator does not take an input in 16 bits with a state in 32 bits, so a probe leaves it out."""

Seen = list[tuple[str, tuple[tuple[torch.dtype, tuple[int, ...], tuple[int, ...]], ...]]]


class Listen(Operators):
    """Notes every operator that computes, with type, shape and strides of its tensors."""

    def __init__(self) -> None:
        super().__init__(self.note)
        self.seen: Seen = []

    def note(self, name: str, args: Any) -> None:
        tensors = [value for value in args if isinstance(value, Tensor) and value.dim()]
        if tensors and name not in VIEWS:
            infos = tuple((tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())) for tensor in tensors)
            self.seen.append((name, infos))


def really(name: str, batch: int, autocast: torch.dtype | None, *, channels_last: bool = False) -> Seen:
    """Run the forward pass of a network and return its operators."""
    torch.manual_seed(0)
    make, data = NETWORKS[name]
    network = make()
    if channels_last:
        network.to(memory_format=torch.channels_last)
    inputs = data(batch)
    labels = labels_of(inputs)
    listen = Listen()
    with listen:
        loss_of(network, inputs, labels, autocast)
    return listen.seen


def as_probed(name: str, setting: Setting, batch: int = 6, recorded: torch.dtype | None = None) -> Seen:
    """Make the calls that a probe would make after a recording, and return their operators."""
    calls = calls_of(name, batch, recorded)
    current = Setting(CURRENT, calls.autocast)
    found, skipped = follow(calls, (current, setting), batch, "cpu")
    assert not skipped
    listen = Listen()
    dtype = getattr(torch, setting.autocast) if setting.autocast else None
    for place in calls.order:
        bound = found[place][setting.name]
        arguments = [tensors(value, gradients=not bound.in_place) for value in bound.arguments]
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None), listen:
            bound.call(arguments)
    return listen.seen


def tensors(value: Any, *, gradients: bool) -> Any:
    """Tensors of ones in place of their descriptions."""
    if isinstance(value, TensorInfo):
        made = torch.empty_strided(value.shape, value.strides, dtype=value.dtype)
        return made.fill_(1).requires_grad_(value.gradient and gradients)
    return [tensors(part, gradients=gradients) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", NETWORKS)
def test_the_recorded_setting_is_repeated(name: str) -> None:
    assert as_probed(name, Setting("again")) == really(name, 6, None)


@pytest.mark.parametrize("name", IN_16_BITS)
def test_types_and_casts_of_mixed_precision(name: str) -> None:
    """Autocast keeps casts of weights, which a probe of single calls makes once each as well."""
    found = as_probed(name, Setting("bf16", "bfloat16"))
    assert found == really(name, 6, torch.bfloat16)
    assert "_to_copy" in {operator for operator, _ in found}


@pytest.mark.parametrize("name", IN_16_BITS)
def test_a_recording_in_mixed_precision_is_repeated(name: str) -> None:
    assert as_probed(name, Setting("again", "bfloat16"), recorded=torch.bfloat16) == really(name, 6, torch.bfloat16)


def test_the_way_back_from_mixed_precision() -> None:
    assert as_probed("convolutions", Setting("fp32"), recorded=torch.bfloat16) == really("convolutions", 6, None)


@pytest.mark.parametrize("autocast", [None, "bfloat16"])
def test_layouts_follow_the_weights(autocast: str | None) -> None:
    dtype = torch.bfloat16 if autocast else None
    found = as_probed("convolutions", Setting("last", autocast, channels_last=True), recorded=dtype)
    assert found == really("convolutions", 6, dtype, channels_last=True)


@pytest.mark.parametrize("name", NETWORKS)
def test_twice_the_batch(name: str) -> None:
    assert as_probed(name, Setting("batch", batch=2)) == really(name, 12, None)


def test_only_parameters_and_their_results_need_gradients() -> None:
    calls = calls_of("convolutions")
    found, _ = follow(calls, (Setting(CURRENT),), 6, "cpu")

    def needs(bound: Bound) -> list[bool]:
        return [value.gradient for value in bound.arguments if isinstance(value, TensorInfo)]

    convolutions = [found[place][CURRENT] for place, call in enumerate(calls.calls) if call.name == "aten::conv2d"]
    assert needs(convolutions[0]) == [False, True]  # the images, the weight
    assert needs(convolutions[1]) == [True, True, True]
    (norm,) = [found[place][CURRENT] for place, call in enumerate(calls.calls) if call.name == "aten::batch_norm"]
    assert needs(norm) == [True, True, True, False, False]  # not the running mean and variance


@pytest.mark.parametrize(
    ("shape", "grown", "sizes", "place"),
    [
        ((8, 3), 0, (8, 3), 0),
        ((8, 3), 0, (-1, 3), None),
        ((64, 16, 256), 1, (1024, 256), 0),
        ((512, 4, 192), 1, (512, 24, 32), 1),
        ((24, 512, 32), 0, (4, 6, 512, 32), 0),
        ((1, 8), 1, (8, 1), 0),
    ],
)
def test_the_size_that_grows_with_the_batch(
    shape: tuple[int, ...], grown: int, sizes: tuple[int, ...], place: int | None
) -> None:
    assert grown_place(shape, grown, sizes, 4) == place


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1), (1, 1, 4, 4), (1, 3, 4, 4)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_channels_last_is_what_torch_takes_for_it(shape: tuple[int, ...], channels_last: bool) -> None:
    tensor = torch.empty(shape)
    if channels_last:
        tensor = tensor.to(memory_format=torch.channels_last)
    info = TensorInfo(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
    weight = torch.ones(2, shape[1], 1, 1)
    is_last = (
        torch.nn.functional.conv2d(tensor.fill_(1), weight).stride()
        != torch.nn.functional.conv2d(torch.ones(shape), weight).stride()
    )
    if shape[2] * shape[3] > 1:
        assert is_channels_last(info) == is_last


def test_a_gradient_passes_through_operators_that_return_their_input() -> None:
    calls = calls_of("attention")
    assert any(call.name == "aten::dropout" and not call.has_backward for call in calls.calls)
    found, _ = follow(calls, (Setting(CURRENT),), 6, "cpu")
    inputs = [
        found[place][CURRENT].arguments[0] for place, call in enumerate(calls.calls) if call.name == "aten::linear"
    ]
    assert len(inputs) >= 4
    assert all(info.gradient for info in inputs)
