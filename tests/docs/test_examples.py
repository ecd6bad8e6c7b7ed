"""The Python of README and docs runs: the ``python`` blocks of a page one after the other. ``py`` is a fragment."""

import inspect
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, TensorDataset

import lightning_perf
from lightning_perf.inference import FineTuner, Validation
from tests.support.markdown import PAGES, Block, blocks, inline_code

PYTHON = {page: [block for block in blocks(page) if block.language == "python"] for page in PAGES}
FRAGMENTS = [block for page in PAGES for block in blocks(page) if block.language == "py"]


def given() -> dict[str, Any]:
    """What a reader of any page has: the imports of the first lines, a model and its data."""
    torch.manual_seed(0)
    batches = DataLoader(TensorDataset(torch.rand(8, 4), torch.arange(8) % 2), batch_size=4)
    return {
        "__name__": "__main__",
        "Trainer": lambda **options: Trainer(**{"accelerator": "cpu", "enable_progress_bar": False, **options}),
        "PerfCallback": lightning_perf.PerfCallback,
        "torch": torch,
        "student": torch.nn.Linear(4, 2),
        "teacher": torch.nn.Linear(4, 2),
        "train_loader": batches,
        "val_loader": batches,
    }


@pytest.mark.parametrize("page", [page for page in PAGES if PYTHON[page]], ids=lambda page: page.name)
def test_examples_run(page: Path, sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sandbox)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    names = given()
    for block in PYTHON[page]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning's advice on so small a training
            exec(_compiled(block), names)


@pytest.mark.parametrize("block", FRAGMENTS, ids=str)
def test_fragments_compile(block: Block) -> None:
    _compiled(block)


def _compiled(block: Block) -> Any:
    """The code of a block, with lines numbered as in its page."""
    return compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")


SETTABLE = (
    lightning_perf.PerfCallback,
    lightning_perf.PerfTuner,
    lightning_perf.PrecisionCallback,
    lightning_perf.CaptureOptions,
    lightning_perf.PerfLoop,
    lightning_perf.PerfLoop.steps,
    lightning_perf.PerfTrainerCallback,
    lightning_perf.PerfReport.print,
    lightning_perf.PerfReport.to_json,
    lightning_perf.PerfReport.write_html,
    FineTuner,
    Validation,
)
OTHER_SETTINGS = {
    "benchmark", "devices", "dynamic", "fullgraph", "fused", "memory_format", "mode", "num_workers", "batch_size",
    "create_graph", "max_norm", "cuda_graph_annotations", "enable_annotations", "plugins",
    "enable_environment_counters", "pin_memory", "prog_bar", "profiler", "schedule", "stacks", "static_graph",
    "strategy", "attn_mask", "dropout_p", "is_causal", "scale", "drop_last", "persistent_workers", "optim", "use_cpu",
}  # fmt: skip
"""Of Lightning's Trainer and profiler, of torch, and of transformers."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_in_the_prose_exist(page: Path) -> None:
    known = {name for one in SETTABLE for name in inspect.signature(one).parameters}
    calls = [code for code in inline_code(page) if "--" not in code and "?" not in code]  # no commands, no addresses
    named = {name for code in calls for name in re.findall(r"(?<![-\w{])([a-z]\w+)=(?!=)", code)}
    assert named <= known | OTHER_SETTINGS
