"""What a program keeps when it adds the callback: its imports, its loggers, its warnings."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_perf.machine.environment import host_notes
from lightning_perf.workers.revision import git_revision
from tests.callbacks.perf_training import fit, quick
from tests.callbacks.training import PACKAGES, make_module, trace_files

NET = """
import torch
class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

def fit(*callbacks):
    data = torch.utils.data.DataLoader(torch.zeros(16, 2), 2)
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                         callbacks=[*callbacks], enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Net(), data)
"""


@pytest.mark.parametrize(("name", "first"), [(PACKAGES[0], "callback"), (PACKAGES[1], "Trainer")])
def test_a_fit_loads_the_package_in_use_and_no_analysis_and_its_logger_stays_in_charge(
    tmp_path: Path, name: str, first: str
) -> None:
    imports = [f"import {name} as pl", "from lightning_perf import PerfCallback\ncallback = PerfCallback(skip_first=1)"]
    lines = "\n".join(imports if first == "Trainer" else reversed(imports))
    later = PACKAGES[name == PACKAGES[0]]
    # Lightning may have imported heavy packages already, so it is our import statements that count.
    code = f"""
import builtins, logging, sys
asked, own = [], builtins.__import__
def recording(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {{}}).get("__name__") or ""
    if importer.startswith("lightning_perf"):
        asked.append((name.split(".")[0], importer))
    return own(name, globals, locals, fromlist, level)
builtins.__import__ = recording
{lines}
logging.getLogger({name!r}).setLevel(logging.ERROR)
{NET}
class Look(pl.Callback):
    def on_train_end(self, *_):
        global during
        during = {{name for name in sys.modules if name.startswith("lightning_perf.")}}
fit(callback, Look())
assert isinstance(callback, pl.Callback)
heavy = [each for each in asked if each[0] in ("matplotlib", "pandas", "scipy", "sympy")]
assert asked and not heavy, heavy
too_early = ("lightning_perf.findings", "lightning_perf.page", "lightning_perf.report", "lightning_perf.statistics")
assert not [name for name in during if name.startswith(too_early)]
assert {later.partition(".")[0]!r} not in sys.modules, "the other package was loaded"
import {later}  # it joins
assert isinstance(callback, {later}.Callback)
home = sys.modules["{later}.callbacks.callback"]
assert home.__loader__ is home.__spec__.loader
assert type(home.__loader__).__name__ == "SourceFileLoader", home.__loader__
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "Where" in done.stdout
    assert "GPU available" not in done.stderr + done.stdout


@pytest.mark.skipif(torch.torch_version.TorchVersion(torch.__version__) < "2.12", reason="torch itself warns")
def test_a_warning_that_is_shown_once_stays_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Measured: 12 times instead of once with repeat=0.
    def step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        warnings.warn("mind the step", UserWarning, stacklevel=1)
        return self.loss(batch)

    importlib.import_module("lightning.pytorch.strategies")  # adds filters of its own when it loads
    shown: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        monkeypatch.setattr(warnings, "showwarning", lambda message, *_, **__: shown.append(str(message)))
        before = list(warnings.filters)
        fit(tmp_path, 20, module=make_module(training_step=step), callback=quick(repeat=0))
        assert list(warnings.filters) == before
    assert len(trace_files(tmp_path)) > 3
    assert shown.count("mind the step") == 1


def test_the_facts_of_a_run_repeat_no_warning() -> None:
    registry: Any = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            warnings.warn_explicit("shown once", UserWarning, "module.py", 1, registry=registry)
            git_revision(Path(__file__).parent)
            host_notes()
    assert len(caught) == 1
