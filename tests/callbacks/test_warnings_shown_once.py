"""Python shows most warnings once per place. It repeats them when somebody changes the filters, so a fit must not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

from lightning_perf import PerfCallback
from lightning_perf.machine.environment import host_notes
from lightning_perf.revision import git_revision
from tests.callbacks.training import loader, make_module, make_trainer


@pytest.mark.skipif(
    TorchVersion(torch.__version__) < "2.12", reason="this profiler warns at each start, which must be silenced"
)
def test_a_fit_repeats_no_warning(tmp_path: Path) -> None:
    registry: Any = {}

    def warn() -> None:
        warnings.warn_explicit("shown once", UserWarning, "module.py", 1, registry=registry)

    def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        warn()
        loss: torch.Tensor = self.loss(batch)
        return loss

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        trainer = make_trainer(tmp_path, PerfCallback(skip_first=2, warmup=1, active=2, report="none"))
        warn()
        trainer.fit(make_module(training_step=training_step), loader(8))
        warn()
    assert [str(one.message) for one in caught].count("shown once") == 1


def test_the_facts_of_a_run_repeat_no_warning() -> None:
    registry: Any = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            warnings.warn_explicit("shown once", UserWarning, "module.py", 1, registry=registry)
            git_revision(Path(__file__).parent)
            host_notes()
    assert len(caught) == 1
