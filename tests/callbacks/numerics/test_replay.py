from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from lightning_perf.callbacks.numerics.replay import TorchRandomState, unmarked
from tests.callbacks.precision_training import make_net


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
        with unmarked(module):
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
    with unmarked(module):
        for metric in (module.mean, module.cat):
            metric.update(torch.tensor(9.0))
            metric.compute()
    assert (module.mean.compute(), module.cat.compute()) == (1.0, 1.0)


def test_random_state_is_of_its_moment():
    state = TorchRandomState(torch.device("cpu"))
    first = torch.rand(3)
    torch.rand(5)
    state.restore()
    assert torch.equal(torch.rand(3), first)


def test_compiled_parts_run_eagerly():
    module = make_net()
    seen = []

    class Spy(nn.Module):
        def forward(self, x):
            seen.append(torch.compiler.is_compiling())
            return x

    module.spy = Spy()
    compiled = torch.compile(module.spy, backend="aot_eager")
    with unmarked(module):
        compiled(torch.ones(1))
    assert seen == [False]
