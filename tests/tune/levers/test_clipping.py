"""Clipping by the Trainer excludes a fused optimizer in mixed precision: Lightning raises in the first step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_perf.tune.errors import NotApplicableError
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.levers.optimizer import FusedOptimizer
from lightning_perf.tune.levers.precision import MixedPrecision
from lightning_perf.tune.training import Training
from tests.tune.trainings import Tiny

CPU = Machine("cpu", None, 2, "a CPU")


def own_clipping(self: Any, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None) -> None:
    torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)


def training(precision: Any, clip: float | None, module: Any = None) -> Training:
    return Training(module or Tiny("Adam"), None, {"precision": precision, "gradient_clip_val": clip})


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16", "16-mixed", "16", 16])
def test_clipping_in_mixed_precision_excludes_fusing(precision):
    assert "clip" in str(FusedOptimizer().missing(training(precision, 1.0), CPU))
    assert FusedOptimizer().missing(training(precision, None), CPU) is None
    late = training(precision, 1.0)
    FusedOptimizer().apply(late)
    with pytest.raises(NotApplicableError, match="clip"):
        late.module.configure_optimizers()


def test_clipping_in_fp32_or_in_the_module_does_not():
    assert FusedOptimizer().missing(training("32-true", 1.0), CPU) is None
    module = type("Clipping", (Tiny,), {"configure_gradient_clipping": own_clipping})("Adam")
    assert FusedOptimizer().missing(training("bf16-mixed", 1.0, module), CPU) is None
    # Under 16-mixed such a method would clip gradients that are still scaled.
    assert FusedOptimizer().missing(training("16-mixed", 1.0, module), CPU) is not None


def test_mixed_precision_is_not_tried_on_a_fused_optimizer_with_clipping():
    def fused() -> Any:
        module: Any = Tiny("Adam")
        module.configure_optimizers = lambda: torch.optim.Adam(module.parameters(), fused=True)
        return module

    lever = MixedPrecision("bf16-mixed")
    assert "fused" in str(lever.missing(training(None, 1.0, fused()), CPU))
    assert lever.missing(training(None, None, fused()), CPU) is None
    assert lever.missing(training(None, 1.0), CPU) is None
