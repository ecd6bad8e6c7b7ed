"""A training that is killed outright in its second epoch; run as a script: folder."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from lightning_perf import PerfCallback
from tests.callbacks.training import loader, make_module, make_trainer


def killed(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
    if self.current_epoch == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return self.loss(batch)


if __name__ == "__main__":
    torch.set_num_threads(1)
    module = make_module(training_step=killed)
    make_trainer(Path(sys.argv[1]), PerfCallback(report="none"), max_epochs=3).fit(module, loader(6))
