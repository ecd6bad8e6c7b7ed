"""A compiled step has the same graphs with the callback: none of its wrappers and hooks gets into them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from tests.callbacks.perf_training import quick
from tests.callbacks.training import loader, make_module, make_trainer


def logged_loss(self: Any, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = self.loss(batch)
    self.log("loss", loss)
    return loss


def whole(_: Path) -> Any:
    return torch.compile(make_module(training_step=lambda self, batch, _: logged_loss(self, batch)), backend="eager")


def manual(_: Path) -> Any:
    def training_step(self: Any, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(logged_loss(self, batch))
        optimizer.step()

    module = make_module(training_step=training_step)
    module.automatic_optimization = False
    return torch.compile(module, backend="eager")


def helper(_: Path) -> Any:
    part = torch.compile(logged_loss, backend="eager")
    return make_module(part=part, training_step=lambda self, batch, _: self.part(batch))


def compilations(tmp_path: Path, make: Any, callback: Any) -> tuple[dict[str, int], int]:
    """Return the graph breaks of a fit by their reason, and the number of its graphs."""
    torch._dynamo.reset()
    counters.clear()
    make_trainer(tmp_path, callback, max_steps=4).fit(make(tmp_path), loader(4))
    return dict(counters["graph_break"]), counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("make", [whole, manual, helper])
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_step_has_the_same_graph_breaks(tmp_path: Path, make: Any) -> None:
    plain = compilations(tmp_path, make, None)
    assert plain[1], "nothing was compiled"
    assert compilations(tmp_path, make, quick()) == plain
