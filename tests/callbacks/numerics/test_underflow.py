from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightning_perf.analysis.precision.scales import tabulate_underflow
from lightning_perf.callbacks.numerics.underflow import VALUES_A_PARAMETER, CountedGradients
from lightning_perf.callbacks.precision.autograd_graph import read_graph
from lightning_perf.callbacks.precision_callback import PrecisionCallback
from lightning_perf.run_files.numerics.precision import UnderflowTable
from lightning_perf.run_files.numerics.samples import GRADIENT_SAMPLES
from tests.callbacks.precision_training import Recipe, fit, make_net, same, stock_options

pytestmark = pytest.mark.usefixtures("fp16_on_cpu")


class Fade(torch.autograd.Function):
    """Does nothing, and makes gradients 1e-7 times as large: divided by a batch of 8, about 1e-8 a value."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 1e-7


class Faint(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.faint, self.plain = nn.Linear(8, 4, bias=False), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Fade.apply(self.faint(x).float()) + self.plain(x)


def train_faint(tmp_path: Any, **options: Any) -> tuple[Any, UnderflowTable]:
    module = make_net()
    torch.manual_seed(0)
    module.net = Faint()
    module.body = module.fc = nn.Identity()
    module.forward = lambda x: module.net(x)
    # Only the faint layer learns, at a rate that makes up for its gradients.
    module.configure_optimizers = lambda: torch.optim.SGD(
        [{"params": module.net.faint.parameters(), "lr": 1e6}, {"params": module.net.plain.parameters(), "lr": 0.0}]
    )
    callback = PrecisionCallback("16-mixed", underflow_every_n_steps=1, **options)
    outcome = fit(tmp_path, callback, module, max_steps=24)
    assert callback.underflow is not None
    return outcome, callback.underflow


def test_known_underflow_names_the_layer_and_either_cure_shows_in_the_loss(tmp_path):
    sick, table = train_faint(tmp_path, init_scale=1.0)
    faint, plain = table.layers
    assert [layer.name for layer in table.underflowing] == ["net.faint"]
    assert (faint.arithmetic, faint.zero_share, faint.vanished) == ("fp16", 1.0, True)
    assert -32 <= faint.median_exponent <= -24  # 1e-8 is 2**-26.6
    assert (plain.vanished, plain.underflows) == (None, False)
    assert table.advice.action == "init_scale"
    assert table.advice.init_scale is not None

    kept, kept_table = train_faint(tmp_path, init_scale=1.0, keep_fp32=["net.faint"])
    assert [(layer.arithmetic, layer.underflows) for layer in kept_table.layers] == [("fp32", False), ("fp16", False)]
    scaled, scaled_table = train_faint(tmp_path, init_scale=table.advice.init_scale)
    assert scaled_table.underflowing == ()
    assert scaled_table.advice is None

    def learned(outcome: Any) -> float:
        return sum(outcome.losses[:6]) / 6 - sum(outcome.losses[-6:]) / 6

    assert learned(sick) < 0.001
    assert learned(kept) > 0.02
    assert learned(scaled) > 0.02


def test_layer_without_a_gradient_is_not_taken_for_underflow(tmp_path):
    module = make_net()
    module.dead = nn.Linear(8, 4)
    module.forward = lambda x: module.fc(module.body(x)) + module.dead(x) * 0.0
    callback = PrecisionCallback("16-mixed", underflow_every_n_steps=1, init_scale=1024.0)
    # At 2²⁰ times the scale other layers overflow here, and at 2¹⁰ times: a sample goes by for each.
    fit(tmp_path, callback, module, max_steps=5)
    (dead,) = (layer for layer in callback.underflow.layers if layer.name == "dead")
    assert (dead.zero_share, dead.vanished, dead.underflows) == (1.0, False, False)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_counts_are_those_of_the_gradients_of_the_first_batch(tmp_path, accumulate) -> None:
    module = make_net()
    gradients: list[dict[str, torch.Tensor]] = []

    def keep() -> None:
        gradients.append({name: p.grad.clone() for name, p in module.named_parameters()})

    module.on_after_backward = keep
    callback = PrecisionCallback("16-mixed", underflow_every_n_steps=2)
    steps = range(0, 6 // accumulate, 2)
    fit(tmp_path, callback, module, accumulate_grad_batches=accumulate, max_steps=6 // accumulate)
    (file,) = tmp_path.rglob("underflow.rank0.jsonl")
    samples = GRADIENT_SAMPLES.read(file)
    assert [(sample.step, sample.scale) for sample in samples] == [(step, 65536.0) for step in steps]
    for sample in samples:
        assert list(sample.layers) == ["body.0", "body.1", "fc"]
        assert {name: row.arithmetic for name, row in sample.layers.items()} == {
            "body.0": "fp16", "body.1": "fp32", "fc": "fp16",
        }  # fmt: skip
        for layer, row in sample.layers.items():
            values = torch.cat(
                [gradients[sample.step * accumulate][f"{layer}.{own}"].flatten() for own in ("weight", "bias")]
            )
            assert row.zeros == int((values == 0).sum())
            for offset, count in enumerate(row.counts):
                low = 2.0 ** (row.first_exponent + offset)
                assert count == int(((values.abs() >= low) & (values.abs() < 2 * low)).sum())
            assert row.zeros + sum(row.counts) == values.numel()
    assert callback.underflow == tabulate_underflow(samples)


def test_gradients_left_by_another_optimizer_are_not_counted(tmp_path):
    module = make_net(Recipe(manual=True))

    def training_step(batch: Any, batch_idx: int) -> None:
        optimizer = module.optimizers()
        for loss in (module.loss(batch), (module.body(batch[0]) ** 2).mean()):  # the second does not reach fc
            module.manual_backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    module.training_step = training_step
    callback = PrecisionCallback("16-mixed", underflow_every_n_steps=1)
    fit(tmp_path, callback, module, max_steps=1)
    (file,) = tmp_path.rglob("underflow.rank0.jsonl")
    assert [list(sample.layers) for sample in GRADIENT_SAMPLES.read(file)] == [
        ["body.0", "body.1", "fc"],
        ["body.0", "body.1"],
    ]


def checkpointed(*, reentrant: bool) -> Any:
    module = make_net()
    module.forward = lambda x: module.fc(checkpoint(module.body, x.requires_grad_(), use_reentrant=reentrant))
    return module


PROBED: dict[str, tuple[Callable[[], Any], str]] = {
    "reentrant checkpoint": (partial(checkpointed, reentrant=True), "unknown"),
    "checkpoint": (partial(checkpointed, reentrant=False), "fp16"),
    "compiled": (partial(make_net, Recipe(compiled=True)), "unknown"),
    "overflow": (partial(make_net, Recipe(overflow_at=0)), "fp16"),
}


@pytest.mark.parametrize("case", PROBED)
def test_probing_changes_nothing_and_names_what_it_cannot_see(tmp_path, case):
    make, arithmetic = PROBED[case]
    callback = PrecisionCallback("16-mixed", underflow_every_n_steps=1, init_scale=2.0**-30)
    ours = fit(tmp_path, callback, make())
    assert same(ours, fit(tmp_path, None, make(), **stock_options("16-mixed", init_scale=2.0**-30)))
    assert {row.name: row.arithmetic for row in callback.underflow.layers}["body.0"] == arithmetic


def test_large_parameters_are_sampled_evenly():
    ramp = torch.arange(1, 10 * VALUES_A_PARAMETER + 1, dtype=torch.float32)
    (row,) = CountedGradients([(0, ramp)], 1).read(["fp16"])
    assert sum(row.counts) == VALUES_A_PARAMETER
    assert row.first_exponent + len(row.counts) - 1 == 17  # 163840 is between 2**17 and 2**18
    assert row.counts[-2] == pytest.approx(65536 / 10, abs=1)


def test_every_shape_and_value_is_counted():
    inf = float("inf")
    gradients = [
        (0, torch.tensor([0.0, -0.0, 1.0, -1.5, inf, -inf, float("nan")])),
        (1, torch.tensor(2.0**-60)),
        (1, torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)),
        (2, torch.sparse_coo_tensor([[1, 1]], [1.0, 3.0], (4,), check_invariants=True)),
        (2, torch.ones(0)),
        (2, torch.ones(3, dtype=torch.bfloat16)),
    ]
    first, second, third = CountedGradients(gradients, 3).read(["fp16", "fp16", "fp32"])
    assert (first.zeros, first.nonfinite, first.first_exponent, first.counts) == (2, 3, 0, (2,))
    assert (second.first_exponent, second.counts[0], second.counts[-1]) == (-40, 1, 120)
    assert (third.first_exponent, third.counts, third.arithmetic) == (0, (3, 0, 1), "fp32")


def test_counts_the_casts_of_each_parameter():
    first, norm, unused = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)
    for cache_enabled, casts in ((True, 1), (False, 3)):
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache_enabled):
            x = torch.ones(2, 4)
            for _ in range(3):
                x = first(x)
            graph = read_graph(norm(x).sum())
        assert graph.casts == {
            id(first.weight): casts, id(first.bias): casts, id(norm.weight): 0, id(norm.bias): 0,
        }  # fmt: skip
        assert id(unused.weight) not in graph.casts
        assert sum(graph.casts.values()) == 2 * casts
        assert not graph.compiled


def test_compiled_code_hides_its_casts():
    layer = nn.Linear(4, 4)
    compiled = torch.compile(layer, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        graph = read_graph(compiled(torch.ones(2, 4)).sum())
    assert graph.compiled
    assert set(graph.casts) == {id(layer.weight), id(layer.bias)}
    torch.compiler.reset()
    assert read_graph(torch.ones(())).casts == {}  # a loss without a graph
