"""Attention, repeated forward work and second derivatives, in recordings of torch and in published ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

from lightning_perf.analysis.model.attention import attention
from lightning_perf.analysis.model.workload import has_second_derivative, recompute
from lightning_perf.trace.reader import read_trace
from lightning_perf.trace.trace import Trace
from tests.support.known import known
from tests.support.trace_builder import TraceBuilder

SHAPE = (2, 3, 16, 8)
"""Batch, heads, tokens and head size."""


def sdpa(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def dropping(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, dropout_p=0.25)


def by_hand(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return scores.masked_fill(~mask, -torch.inf).softmax(dim=-1) @ value


def of_an_encoder(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """No mask; a triangle that something else uses has another size."""
    torch.ones(8, 8).tril()
    return (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(dim=-1) @ value


GIVEN = torch.ones(SHAPE[-2], SHAPE[-2]).tril() - 1.0


def with_given_mask(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A mask that was made before the recording is added to the scores. Nothing shows that it is causal."""
    scores = query @ key.transpose(-1, -2) + 1e4 * GIVEN
    return functional.dropout(scores.softmax(dim=-1), 0.1) @ value


def gated(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A softmax between products that is no attention: it is over another shape."""
    return (query @ key.transpose(-1, -2)) @ value * query.softmax(dim=-1)


def recorded(tmp_path: Path, function: Callable[..., Tensor], *, steps: int = 2) -> Trace:
    tensors = [torch.randn(SHAPE, requires_grad=True) for _ in range(3)]
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as recorder:
        for step in range(steps):
            with record_function(f"ProfilerStep#{step}"):
                with record_function("perf::forward"):
                    loss = function(*tensors).square().sum()
                with record_function("perf::backward"):
                    loss.backward()
    path = tmp_path / "rank0.pt.trace.json"
    recorder.export_chrome_trace(str(path))
    return read_trace(path)


@pytest.mark.parametrize(
    ("function", "implementation", "causal", "dropout"),
    [
        (sdpa, "flash", True, 0.0),
        (dropping, "math", False, 0.25),
        (by_hand, "written out", True, 0.0),
        (of_an_encoder, "written out", False, 0.0),
        (with_given_mask, "written out", None, None),
    ],
)
def test_implementations_of_torch(
    tmp_path: Path, function: Callable[..., Tensor], implementation: str, causal: bool | None, dropout: float | None
) -> None:
    found = known(attention(recorded(tmp_path, function)))
    (kind,) = found.kinds
    assert (kind.implementation, kind.calls, kind.keys, kind.type) == (implementation, 2, 16, "float")
    assert (kind.causal, kind.dropout) == (causal, dropout)
    assert found.with_backward
    assert kind.query == (SHAPE if implementation != "written out" else (6, 16, 8))
    assert kind.forward_flops == 2 * (2 * 2 * 6 * 16 * 16 * 8)
    assert 0 <= kind.product_ns < kind.time_ns
    assert (kind.product_ns > 0) == (implementation != "flash")


@pytest.mark.parametrize(("given", "mask"), [("none", False), ("padding", True), ("bias", True)])
def test_masks_of_attention_that_is_written_out(tmp_path: Path, given: str, mask: bool) -> None:
    bias = torch.zeros(6, 16, 16)
    padding = torch.zeros(2, 1, 1, 16, dtype=torch.bool)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if given == "bias":
            flat = [one.flatten(0, 1) for one in (query, key, value)]
            return torch.baddbmm(bias, flat[0], flat[1].transpose(1, 2)).softmax(dim=-1) @ flat[2]
        scores = query @ key.transpose(-1, -2)
        return (scores.masked_fill(padding, -1e4) if given == "padding" else scores).softmax(dim=-1) @ value

    found = known(attention(recorded(tmp_path, attend)))
    (kind,) = found.kinds
    assert (kind.implementation, kind.mask, kind.type) == ("written out", mask, "float")
    assert kind.causal is (None if mask else False)


def test_the_weights_of_multihead_attention(tmp_path: Path) -> None:
    layer = torch.nn.MultiheadAttention(24, 3, batch_first=True).eval()

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows = [one.transpose(1, 2).flatten(2) for one in (query, key, value)]
        return layer(*rows)[0]

    found = known(attention(recorded(tmp_path, attend)))
    assert [(kind.implementation, kind.mask, kind.causal) for kind in found.kinds] == [("written out", False, False)]


def test_another_softmax_between_products_is_no_attention(tmp_path: Path) -> None:
    assert attention(recorded(tmp_path, gated)) is None


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_backward_repeats_a_checkpointed_region(tmp_path: Path, reentrant: bool) -> None:
    def region(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.sigmoid(by_hand(query, key, value))

    def checkpointed(*tensors: Tensor) -> Tensor:
        return checkpoint(region, *tensors, use_reentrant=reentrant)

    trace = recorded(tmp_path, checkpointed)
    repeated, found = recompute(trace), attention(trace)
    assert repeated is not None
    assert found is not None
    assert repeated.steps == 2
    assert repeated.time_ns > 0
    assert not repeated.on_device
    assert sum(kind.calls for kind in found.kinds) == 2  # those of the forward
    assert recompute(recorded(tmp_path, by_hand)) is None


def test_device_time_is_that_of_the_kernels_of_forward_and_backward() -> None:
    builder = TraceBuilder().gpu("GPU")
    dims = [[2, 4, 64, 32]] * 3
    for step in range(2):
        at = 1000 * step
        builder.step(step, at, 1000)
        builder.op("aten::scaled_dot_product_attention", at + 10, 50, dims=[*dims, [64, 64], [], [], []], sequence=step)
        builder.op(
            "aten::_scaled_dot_product_efficient_attention", at + 12, 40, types=["c10::Half"] * 3, dims=dims,
            sequence=step,
        )  # fmt: skip
        builder.launch("fmha_cutlassF", call_us=at + 15, call_duration_us=5, start_us=at + 30, duration_us=100)
        builder.op("Backward0", at + 500, 100, sequence=step, forward_thread=1, thread=2000)
        builder.launch(
            "fmha_cutlassB", call_us=at + 510, call_duration_us=5, start_us=at + 530, duration_us=250, thread=2000
        )
        builder.op("aten::mm", at + 700, 20)
        builder.launch("gemm", call_us=at + 705, call_duration_us=5, start_us=at + 800, duration_us=50)
    found = known(attention(builder.build()))
    (kind,) = found.kinds
    assert (kind.implementation, kind.type, kind.mask) == ("memory-efficient", "c10::Half", True)
    assert (kind.calls, kind.time_ns) == (2, 2 * 350_000)
    assert found.on_device


def test_compiled_code_calls_operators_that_nothing_links_to_their_backward() -> None:
    """As recorded on an H200: no `scaled_dot_product_attention` above them, and no sequence numbers on them."""
    builder = TraceBuilder().gpu("GPU")
    small, large = [2, 4, 64, 32], [2, 4, 128, 32]
    for at in builder.steps(2, 1000):
        builder.op("CompiledFunction", at, 100, sequence=1)
        for place, (query, duration_us) in enumerate(((small, 10), (large, 30))):
            inputs: dict[str, Any] = {"types": ["c10::BFloat16"] * 3, "dims": [query] * 3 + [[]] * 6}
            inputs["Concrete Inputs"] = ["", "", "", "", "True", "0.25", "True", "False", ""]
            name, start = "aten::_scaled_dot_product_cudnn_attention", at + 10 + 40 * place
            builder.op(name, start, 20, **inputs)
            builder.launch("sdpa_fprop", call_us=start + 5, call_duration_us=5, start_us=start + 10, duration_us=10)
            builder.op(f"{name}_backward", start + 500, 20, thread=2000, dims=[query] * 4)
            builder.launch(
                "sdpa_bprop", call_us=start + 505, call_duration_us=5, start_us=start + 510, duration_us=duration_us,
                thread=2000,
            )  # fmt: skip
    found = known(attention(builder.build()))
    assert found.with_backward
    assert [(kind.query[2], kind.time_ns) for kind in found.kinds] == [(128, 2 * 40_000), (64, 2 * 20_000)]
    assert {(kind.mask, kind.dropout, kind.causal, kind.calls) for kind in found.kinds} == {(False, 0.25, True, 2)}


@pytest.mark.corpus
def test_published_recordings(corpus: Path) -> None:
    (path,) = (corpus / "traces" / "tracelens" / "h100").glob("gaunernst_bert-small-uncased*")
    found = known(attention(read_trace(path)))
    (kind,) = found.kinds
    assert (kind.implementation, kind.query, kind.calls) == ("flash", (1, 8, 141, 64), 4)
    assert kind.type == "c10::BFloat16"


Loss = Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]


def gradient(of: torch.Tensor, by: torch.Tensor, *, differentiable: bool) -> torch.Tensor:
    return torch.autograd.grad(of.sum(), by, create_graph=differentiable, retain_graph=True)[0]


def plain(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return model(inputs).pow(2).mean()


def forces(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    energy = model(inputs)
    return (energy + gradient(energy, inputs, differentiable=True).sum()).pow(2).mean()


def pinn(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    first = gradient(model(inputs), inputs, differentiable=True)
    return gradient(first, inputs, differentiable=True).pow(2).mean()


def saliency(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    output = model(inputs)
    return (output + gradient(output, inputs, differentiable=False).sum()).pow(2).mean()


def checkpointed(*, reentrant: bool) -> Loss:
    def loss(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        return checkpoint(model, inputs, use_reentrant=reentrant).pow(2).mean()

    return loss


@pytest.mark.parametrize(
    ("loss", "second", "repeats"),
    [
        (plain, False, False),
        (saliency, False, False),
        (forces, True, False),
        (pinn, True, False),
        (checkpointed(reentrant=True), False, True),
        (checkpointed(reentrant=False), False, True),
    ],
    ids=["plain", "saliency", "forces", "pinn", "reentrant", "non-reentrant"],
)
def test_which_trainings_differentiate_twice(loss: Loss, second: bool, repeats: bool, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorder:
        for step in range(3):
            with record_function(f"ProfilerStep#{step}"):
                loss(model, torch.randn(2, 4, requires_grad=True)).backward()
    recorder.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = read_trace(tmp_path / "trace.json")
    assert has_second_derivative(trace) == second
    assert (recompute(trace) is not None) == repeats
