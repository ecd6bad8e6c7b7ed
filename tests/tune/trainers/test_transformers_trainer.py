"""Scripts with a `transformers.Trainer` in trials: a tiny language model with random weights, no downloads."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from lightning_perf.tune.device_counts import measure_scaling
from lightning_perf.tune.errors import TuneError
from lightning_perf.tune.messages import Order, Ready, Run, Scouted, Site, Window
from lightning_perf.tune.pairs import start_worker
from lightning_perf.tune.patches.patch import find_patch, make_patch
from lightning_perf.tune.patches.project_copy import run_in_copy
from lightning_perf.tune.settings import TuneSettings
from lightning_perf.workers.process import WorkerFailureError
from lightning_perf.workers.script import Script

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

SCRIPT = """
    import json
    import sys

    import torch
    import transformers
    from transformers import Trainer, TrainingArguments

    class Own(TrainingArguments):
        def __post_init__(self):
            super().__post_init__()

    class Tokens(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, index):
            tokens = (torch.arange(16) * (index + 1)) % 50
            return {"input_ids": tokens, "labels": tokens}

    class Noting(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_save = True
            with open("steps", "a") as file:
                file.write(".")

    if __name__ == "__main__":
        transformers.set_seed(1)
        config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2,
                                         resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
        arguments = Own(
            output_dir="out", per_device_train_batch_size=2, gradient_accumulation_steps=ACCUMULATE,
            num_train_epochs=2, learning_rate=0.1, logging_steps=1, eval_strategy="epoch", save_strategy="epoch",
            load_best_model_at_end=True, report_to=[],
            use_cpu=True,  # there is no other device
        )
        trainer = Trainer(
            transformers.GPT2LMHeadModel(config), arguments, train_dataset=Tokens(), eval_dataset=Tokens(),
            callbacks=[Noting(), transformers.EarlyStoppingCallback(1)],
        )
        trainer.train()
        json.dump([row["loss"] for row in trainer.state.log_history if "loss" in row], open("losses.json", "w"))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(source: str, **values: object) -> None:
    for name, value in values.items():
        source = source.replace(name, str(value))
    Path("train.py").write_text(textwrap.dedent(source))


def order(*levers: str, words: tuple[str, ...] = ("train.py",), **options: Any) -> Order:
    return Order(None, Script(words), None, levers, 0, options.pop("scout", False), "work", **options)


def window(steps: int, *levers: str) -> Window:
    with start_worker(order(*levers)) as worker:
        worker.receive(Ready, timeout_s=300)
        worker.send(Run(steps))
        return worker.receive(Window, timeout_s=300)


def test_a_trial_has_the_losses_of_the_training_and_no_more_than_its_steps(folder: Path) -> None:
    """Over an epoch's end, whose last step has fewer batches."""
    write(SCRIPT, ACCUMULATE=5)
    trial = window(6)
    assert (trial.steps, trial.samples) == (6, 48)
    assert len((folder / "steps").read_text()) == 6
    assert not list((folder / "out").iterdir()), "it saved a checkpoint"
    assert not (folder / "losses.json").exists(), "the script ran on"
    subprocess.run([sys.executable, "train.py"], check=True)
    assert trial.losses == pytest.approx(json.loads((folder / "losses.json").read_text()), rel=1e-3)


def test_more_devices_are_refused(folder: Path) -> None:
    write(SCRIPT, ACCUMULATE=1)
    with pytest.raises(TuneError, match=r"^--devices needs a Trainer of Lightning, and the script trains by one of"):
        measure_scaling(Script(("train.py",)), [1, 2], TuneSettings(minutes=5), lambda _: None)


def test_levers_are_arguments_that_keep_the_losses(folder: Path) -> None:
    write(SCRIPT, ACCUMULATE=2)
    plain = window(4)
    changed = window(4, "workers-1", "fewer-micro-batches")
    assert changed.samples == plain.samples == 16
    assert changed.losses == pytest.approx(plain.losses, rel=1e-3)


def test_a_scout_finds_the_place_of_each_lever(folder: Path) -> None:
    write(SCRIPT, ACCUMULATE=2)
    with start_worker(order(scout=True)) as worker:
        scouted = worker.receive(Scouted, timeout_s=300)
    assert scouted.profile.note is None
    assert scouted.profile.step_ms is not None
    assert scouted.network == "GPT2LMHeadModel, 4,368 parameters"
    assert scouted.missing["fused-optimizer"] == "it is already set"
    assert scouted.missing["workers-1"] is None
    lines = (folder / "train.py").read_text().splitlines()
    found = {place: site for place, (site,) in scouted.sites.items() if isinstance(site, Site)}
    assert {place: lines[site.line - 1].strip() for place, site in found.items()} == {
        "TrainingArguments": "arguments = Own(",
        "module": "trainer = Trainer(",
        "statement": "trainer.train()",
    }
    kept = {name: scouted.settings[name] for name in ("workers-1", "bf16-mixed", "fewer-micro-batches")}
    path = str(folder / "train.py")
    patch = make_patch(kept, scouted.sites, {path: Path(path).read_bytes()}, folder)
    assert [place.reason for place in patch.places] == [None, None, None]
    subprocess.run(["git", "apply", "-"], input=patch.diff.encode(), check=True)
    assert "use_cpu=True,  # there is no other device" in Path(path).read_text()
    subprocess.run([sys.executable, "train.py"], check=True)


PARSED = """
    import torch
    import transformers

    (arguments,) = transformers.HfArgumentParser(transformers.TrainingArguments).parse_args_into_dataclasses()
    data = [{"input_ids": torch.ones(4, dtype=torch.long), "labels": torch.ones(4, dtype=torch.long)}] * DATA
    config = transformers.GPT2Config(vocab_size=9, n_positions=16, n_embd=16, n_layer=1, n_head=2)

    class Own(transformers.Trainer):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(self.train_dataset, collate_fn=self.data_collator)

    TRAINER(transformers.GPT2LMHeadModel(config), arguments, train_dataset=data).train()
"""
COMMAND = ("train.py", "--output_dir", "out", "--report_to", "none", "--use_cpu")


def test_arguments_of_a_command_give_the_options_to_add(folder: Path) -> None:
    write(PARSED, DATA=64, TRAINER="transformers.Trainer")
    with start_worker(order(words=COMMAND, scout=True)) as worker:
        scouted = worker.receive(Scouted, timeout_s=300)
    (place,) = make_patch({"workers-1": scouted.settings["workers-1"]}, scouted.sites, {}, folder).places
    assert place.line == "--dataloader_num_workers=1 --dataloader_persistent_workers=True"
    assert place.reason is not None
    assert place.reason.startswith("HfArgumentParser makes the TrainingArguments: ")


CONFIGURED = """
    import dataclasses
    import sys

    import torch
    import transformers

    def parse(name):
        @dataclasses.dataclass
        class Data:
            rows: int = 8

        @dataclasses.dataclass
        class Own(transformers.TrainingArguments):
            def __post_init__(self):
                super().__post_init__()

        parser = transformers.HfArgumentParser((Data, Own))
        return parser.parse_json_file(name) if name.endswith(".json") else parser.parse_yaml_file(name)

    data, arguments = parse(sys.argv[1])
    config = transformers.GPT2Config(vocab_size=9, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    row = {"input_ids": torch.ones(4, dtype=torch.long), "labels": torch.ones(4, dtype=torch.long)}
    transformers.Trainer(transformers.GPT2LMHeadModel(config), arguments, train_dataset=[row] * data.rows).train()
"""
YAML = """\
output_dir: out
report_to: none
use_cpu: true  # here
dataloader_num_workers: 0
rows: 16
"""
JSON = """\
{
  "output_dir": "out",
  "report_to": "none",
  "use_cpu": true, "dataloader_num_workers": 0,
  "rows": 16
}
"""


@pytest.mark.parametrize(
    ("name", "text", "added"),
    [
        ("arguments.yaml", YAML, "rows: 16\ndataloader_persistent_workers: true\n"),
        ("arguments.json", JSON, '"rows": 16,\n  "dataloader_persistent_workers": true\n'),
    ],
)
def test_the_file_of_a_parser_is_patched(name: str, text: str, added: str, folder: Path) -> None:
    write(CONFIGURED)
    Path(name).write_text(text)
    made = order(words=("train.py", name), scout=True)
    with start_worker(made) as worker:
        scouted = worker.receive(Scouted, timeout_s=300)
    sources = {path: Path(path).read_bytes() for path in scouted.files}
    kept = {"workers-1": scouted.settings["workers-1"]}
    patch = find_patch(kept, scouted, sources, folder, lambda texts: run_in_copy(made, texts, 300))
    assert {(place.file, place.reason) for place in patch.places} == {(name, None)}
    subprocess.run(["git", "apply", "-"], input=patch.diff.encode(), check=True)
    expected = text.replace("num_workers: 0", "num_workers: 1").replace('num_workers": 0', 'num_workers": 1')
    assert Path(name).read_text() == expected.replace(added.splitlines()[0].rstrip(",") + "\n", added)


@pytest.mark.parametrize(
    ("values", "lever", "said"),
    [
        ({"DATA": 0, "TRAINER": "transformers.Trainer"}, (), "ValueError: num_samples should be a positive integer"),
        ({"DATA": 64, "TRAINER": "Own"}, ("workers-1",), "the loader does not follow dataloader_num_workers"),
    ],
)
def test_a_trial_that_fails_says_why_in_one_line(
    values: dict[str, Any], lever: tuple[str, ...], said: str, folder: Path
) -> None:
    write(PARSED, **values)
    with pytest.raises(WorkerFailureError) as error, start_worker(order(*lever, words=COMMAND)) as worker:
        worker.receive(Ready, timeout_s=300)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)
