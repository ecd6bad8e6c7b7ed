from __future__ import annotations

import random
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from lightning_perf.callbacks.numerics.replay import Replay
from lightning_perf.callbacks.steps.fit_state import FitState
from tests.callbacks.precision_training import make_net


def replay(module):
    plugin = SimpleNamespace(train_step_context=nullcontext)
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    return Replay(SimpleNamespace(precision_plugin=plugin, strategy=strategy), module, FitState())


def disturb(module):
    module.body(torch.randn(4, 8)).sum().backward()
    random.random()
    np.random.rand()
    module.log("x", 1.0)
    module.log_dict({"x": 1.0})


@pytest.mark.parametrize("fails", [False, True])
def test_leaves_no_mark_also_when_it_fails(fails):
    module = make_net()
    module.body(torch.randn(4, 8)).sum().backward()
    own = module.log = lambda *_: pytest.fail("logged")
    module.log_dict = own
    gradients = {name: p.grad for name, p in module.named_parameters()}
    values = {name: g.clone() for name, g in gradients.items() if g is not None}
    buffers = {name: b.clone() for name, b in module.named_buffers()}
    states = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    try:
        with replay(module).isolated():
            disturb(module)
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]
    assert all(torch.equal(b, buffers[name]) for name, b in module.named_buffers())
    assert module.log is own
    for name, parameter in module.named_parameters():
        assert parameter.grad is gradients[name]
        assert parameter.grad is None or torch.equal(parameter.grad, values[name])


def test_metrics_keep_their_state():
    torchmetrics = pytest.importorskip("torchmetrics")
    module = make_net()
    module.mean, module.cat = torchmetrics.MeanMetric(), torchmetrics.CatMetric()
    for metric in (module.mean, module.cat):
        metric.update(torch.tensor(1.0))
    with replay(module).isolated():
        for metric in (module.mean, module.cat):
            metric.update(torch.tensor(9.0))
            metric.compute()
    assert (module.mean.compute(), module.cat.compute()) == (1.0, 1.0)


def test_a_batch_is_run_again_on_its_own_values_with_its_own_random_numbers():
    module = make_net()
    weight = nn.Parameter(torch.ones(3))
    module.weight = weight

    def training_step(batch):
        loss = (weight * (batch * torch.rand(3))).sum()
        batch.zero_()  # the next run gets a copy
        return loss

    module.training_step = training_step
    batch = torch.tensor([1.0, 2.0, 3.0])
    kept = replay(module).keep(batch, 0)
    drawn = torch.rand(3)
    torch.rand(5)
    for _ in range(2):
        found = replay(module).run(kept, scale=4.0)
        assert found.loss == (batch * drawn).sum()
        assert list(found.gradients) == ["weight"]
        assert torch.equal(found.gradients["weight"], 4.0 * batch * drawn)
    assert weight.grad is None
    assert torch.equal(replay(module).step(kept, seed=1), replay(module).step(kept, seed=1))
    assert replay(module).step(kept, seed=1) != found.loss


def test_compiled_parts_run_eagerly():
    module = make_net()
    seen = []

    class Spy(nn.Module):
        def forward(self, x):
            seen.append(torch.compiler.is_compiling())
            return x

    module.spy = Spy()
    compiled = torch.compile(module.spy, backend="aot_eager")
    with replay(module).isolated():
        compiled(torch.ones(1))
    assert seen == [False]
