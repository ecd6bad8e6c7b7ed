"""Losses on a GPU, with fake tensors. In cross_entropy, log-softmax has a result in FP16 there, under autocast too."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy

from lightning_perf.callbacks.mistakes.operators import OperatorWatch

LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cross entropy": cross_entropy,
    "exp": lambda logits, _: logits.exp(),
    "softmax": lambda logits, _: logits.softmax(-1),
}


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_a_mistake_outside_of_autocast_only(
    monkeypatch: pytest.MonkeyPatch, name: str, enabled: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # otherwise autocast stays off
    kinds: list[str] = []

    def report(kind: str, *_: str, **__: Any) -> None:
        kinds.append(kind)

    found: Any = SimpleNamespace(layers={}, report=report, failed=pytest.fail)
    module: Any = SimpleNamespace(training_step=LOSSES[name])
    watch = OperatorWatch(module, found, mixed=True)
    with FakeTensorMode(), torch.autocast("cuda", torch.float16, enabled=enabled):
        logits = torch.empty(4, 10, device="cuda", dtype=torch.float16)
        target = torch.empty(4, device="cuda", dtype=torch.long)
        watch.start()
        module.training_step(logits, target)
        watch.stop()
    assert kinds == (["half-loss"] if name != "softmax" and not enabled else [])
