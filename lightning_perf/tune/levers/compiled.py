"""torch.compile."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lightning_perf.machine.environment import has_cpp_compiler
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.training import Training


@dataclass(frozen=True)
class Compiled:
    """The module compiled by TorchInductor.

    Attributes:
        mode: `torch.compile`'s mode; ``reduce-overhead`` replays CUDA graphs.
    """

    mode: str

    def lines(self, training: Training) -> tuple[str, ...]:  # noqa: ARG002
        """See `Change`."""
        mode = "" if self.mode == "default" else f', mode="{self.mode}"'
        return (f"trainer.fit(torch.compile(module{mode}), …)",)

    def missing(self, training: Training, machine: Machine) -> str | None:
        """See `Change`."""
        if self.mode == "reduce-overhead" and machine.device != "cuda":
            return "CUDA graphs need a CUDA GPU"
        if machine.device == "cpu" and not has_cpp_compiler():
            return "needs a C++ compiler: install g++"
        return "the module is compiled already" if _is_compiled(training.module) else None

    def apply(self, training: Training) -> None:
        """See `Change`."""
        training.module = torch.compile(training.module, mode=self.mode)


def _is_compiled(module: torch.nn.Module) -> bool:
    kinds = (torch._dynamo.OptimizedModule,)
    return isinstance(module, kinds) or any(isinstance(part, kinds) for part in module.modules())
