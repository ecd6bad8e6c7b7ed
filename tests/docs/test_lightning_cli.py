"""LightningCLI takes `PerfCallback` from a configuration file and from the command line, as the quickstart shows."""

import json
import shlex
from pathlib import Path

import pytest

from tests.support.markdown import DOCS, blocks
from tests.support.processes import fork_ranks

pytest.importorskip("jsonargparse", reason="needs jsonargparse: pip install 'jsonargparse[signatures]'")

BLOCKS = blocks(DOCS / "quickstart.md")
SCRIPT = """
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader, TensorDataset

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.rand(64, 4)), batch_size=2)

if __name__ == "__main__":
    LightningCLI(Model)
"""
QUICK = ["--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def recorded_steps(folder: Path, *arguments: str) -> int:
    """Run the script with LightningCLI and return how many steps the callback recorded."""
    (folder / "train.py").write_text(SCRIPT)
    done = fork_ranks("train.py", *arguments, ranks=1)
    assert done.returncode == 0, done.stderr
    (windows,) = folder.rglob("windows.rank0.jsonl")
    return sum(json.loads(line)["recorded_steps"] for line in windows.read_text().splitlines())


@pytest.mark.slow
def test_a_configuration_file(tmp_path: Path) -> None:
    (block,) = [block for block in BLOCKS if block.language == "yaml"]
    (tmp_path / "config.yaml").write_text(block.text)
    assert recorded_steps(tmp_path, "fit", "--config", "config.yaml", *QUICK) == 5


@pytest.mark.slow
def test_the_command_line(tmp_path: Path) -> None:
    (line,) = [line for block in BLOCKS for line in block.text.splitlines() if "--trainer.callbacks" in line]
    _, _, script, *arguments = shlex.split(line)
    assert script == "train.py"
    assert recorded_steps(tmp_path, *arguments, *QUICK) == 5
