"""Every argument of the callbacks can be set in a file of LightningCLI."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from lightning_perf import CaptureOptions, PerfCallback, PrecisionCallback
from tests.callbacks.training import trace_files

# jsonargparse before 4.47 ignores a parameter whose type it does not know.
UNKNOWN_TO_THE_PARSER = {"Collection", "Container", "Iterator"}


def names(hint: Any) -> set[str]:
    inner = {name for argument in typing.get_args(hint) for name in names(argument)}
    return inner | {getattr(typing.get_origin(hint) or hint, "__name__", "")}


@pytest.mark.parametrize("settings", [PerfCallback, PrecisionCallback, CaptureOptions])
def test_the_types_of_arguments_are_known_to_the_parser(settings: Any) -> None:
    hints = get_type_hints(settings.__init__)
    assert set(inspect.signature(settings).parameters) <= hints.keys()
    for parameter, hint in hints.items():
        assert not names(hint) & UNKNOWN_TO_THE_PARSER, parameter


@pytest.mark.filterwarnings("ignore")  # the parser's and LightningCLI's own
def test_a_training_is_set_up_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jsonargparse")
    from lightning.pytorch.cli import LightningCLI
    from lightning.pytorch.demos.boring_classes import BoringModel

    config = tmp_path / "config.yaml"
    config.write_text(
        f"""
seed_everything: 1
trainer:
  accelerator: cpu
  max_epochs: 1
  limit_train_batches: 4
  limit_val_batches: 0
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  enable_model_summary: false
  default_root_dir: {tmp_path}
  callbacks:
    - class_path: lightning_perf.PerfCallback
      init_args:
        skip_first: 1
        warmup: 0
        active: 1
        ranks: [0, 8]
        report: none
        max_overhead: 0.5
        precision: bf16-mixed
        keep_fp32: [torch.nn.Linear]
"""
    )
    monkeypatch.setattr("sys.argv", ["train.py"])  # LightningCLI warns of arguments besides `args`
    cli = LightningCLI(BoringModel, args=["fit", "--config", str(config)], save_config_callback=None)
    trainer: Any = cli.trainer
    assert sum(isinstance(each, PerfCallback) for each in trainer.callbacks) == 1
    assert len(trace_files(tmp_path)) == 1
