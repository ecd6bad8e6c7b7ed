"""Levers as `TrainingArguments`, without transformers: a Trainer that only has what is asked of it."""

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import nn
from torch.utils.data import DataLoader

from lightning_perf.tune.levers.lever import Machine, Setting
from lightning_perf.tune.levers.registry import LEVERS, find_lever
from lightning_perf.tune.messages import Site
from lightning_perf.tune.patches.patch import make_patch
from lightning_perf.tune.script import Calls
from lightning_perf.tune.trainers.huggingface import HuggingFaceTrainer, watch_arguments
from tests.tune.trainings import Pictures

GPU = Machine("cuda", (8, 0), 8, "A GPU")
CPU = Machine("cpu", None, 8, "A CPU")
PERSISTENT = "dataloader_persistent_workers=True"


class Optim(str, Enum):
    PLAIN, FUSED, OTHER = "adamw_torch", "adamw_torch_fused", "adafactor"


@dataclass
class Given:
    """The arguments that levers read and set, with the defaults of transformers."""

    output_dir: str = "out"
    bf16: bool = False
    fp16: bool = False
    tf32: bool | None = None
    use_cpu: bool = False
    full_determinism: bool = False
    optim: Optim = Optim.PLAIN
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    dataloader_num_workers: int = 0
    dataloader_pin_memory: bool = True
    dataloader_persistent_workers: bool = False
    dataloader_prefetch_factor: int | None = None
    torch_compile: bool = False
    torch_compile_mode: str | None = None

    def __post_init__(self):
        """Complete them."""


def made(*, optimizer=None, model_init=None, **given):
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Flatten())
    trainer = SimpleNamespace(model=model, args=Given(**given), optimizer=optimizer, model_init=model_init)
    found = HuggingFaceTrainer(trainer, lambda: None)
    found.training.loader = DataLoader(Pictures(), batch_size=8)
    return found, trainer


@pytest.mark.parametrize(
    ("lever", "given", "line"),
    [
        ("bf16-mixed", {}, "TrainingArguments(…, bf16=True)"),
        ("16-mixed", {}, "TrainingArguments(…, fp16=True)"),
        ("tf32", {}, "TrainingArguments(…, tf32=True)"),
        ("channels-last", {}, "module = module.to(memory_format=torch.channels_last)"),
        ("cudnn-benchmark", {}, "torch.backends.cudnn.benchmark = True"),
        ("fused-optimizer", {}, 'TrainingArguments(…, optim="adamw_torch_fused")'),
        ("workers-2", {}, f"TrainingArguments(…, dataloader_num_workers=2, {PERSISTENT})"),
        (
            "workers-4-prefetch-4",
            {"dataloader_num_workers": 4},
            f"TrainingArguments(…, dataloader_num_workers=4, {PERSISTENT}, dataloader_prefetch_factor=4)",
        ),
        ("pin-memory", {"dataloader_pin_memory": False}, "TrainingArguments(…, dataloader_pin_memory=True)"),
        (
            "fewer-micro-batches",
            {"gradient_accumulation_steps": 6},
            "TrainingArguments(…, per_device_train_batch_size=16, gradient_accumulation_steps=3)",
        ),
        ("compile", {}, "TrainingArguments(…, torch_compile=True)"),
        (
            "compile-reduce-overhead",
            {},
            'TrainingArguments(…, torch_compile=True, torch_compile_mode="reduce-overhead")',
        ),
        ("batch-size-x4", {}, "TrainingArguments(…, per_device_train_batch_size=32)"),
    ],
)
def test_each_lever_has_its_arguments(lever, given, line):
    found, trainer = made(**given)
    change = found.change(find_lever(lever))
    assert change.missing(found.training, GPU) is None
    setting, *_ = change.settings(found.training)
    assert str(setting) == line
    change.apply(found.training)
    assert trainer.args == replace(trainer.args, **{name: eval(text) for name, text in setting.arguments.items()})
    assert (trainer.args != Given(**given)) == bool(setting.arguments)


@pytest.mark.parametrize(
    ("lever", "given", "machine", "reason"),
    [
        ("bf16-mixed", {}, CPU, "on a CPU, transformers takes bf16 only with use_cpu=True"),
        ("bf16-mixed", {"use_cpu": True}, CPU, None),
        ("bf16-mixed", {"fp16": True}, GPU, "the Trainer has a precision already, 16-mixed"),
        ("pin-memory", {}, GPU, "it is already set"),
        ("compile", {"torch_compile": True}, GPU, "it is already set"),
        ("fused-optimizer", {"optim": Optim.FUSED}, CPU, "it is already set"),
        ("fused-optimizer", {"optim": Optim.OTHER}, CPU, 'optim="adafactor" has no fused form'),
        ("fused-optimizer", {"optimizer": object()}, CPU, "an optimizer of the script has no fused form"),
        ("channels-last", {"model_init": nn.Identity}, CPU, "model_init makes the model"),
        ("cudnn-benchmark", {"full_determinism": True}, GPU, "the Trainer is deterministic"),
        ("fewer-micro-batches", {"gradient_accumulation_steps": 3}, GPU, "not accumulated over an even number"),
    ],
)
def test_why_a_lever_does_not_apply(lever, given, machine, reason):
    found, _ = made(**given)
    said = found.change(find_lever(lever)).missing(found.training, machine)
    assert said == reason or (reason is not None and said is not None and reason in said)


def test_levers_add_up():
    found, trainer = made(gradient_accumulation_steps=4)
    for name in ("fewer-micro-batches", "batch-size-x2", "workers-2", "fused-optimizer"):
        found.change(find_lever(name)).apply(found.training)
    assert (trainer.args.per_device_train_batch_size, trainer.args.gradient_accumulation_steps) == (32, 2)
    assert (trainer.args.dataloader_num_workers, trainer.args.optim) == (2, "adamw_torch_fused")
    assert found.arguments().values["TrainingArguments"]["per_device_train_batch_size"] == 8, "as the script gave them"


def test_every_lever_of_lightning_has_a_form_here():
    found, _ = made(gradient_accumulation_steps=2)
    places = {setting.place for lever in LEVERS for setting in found.change(lever).settings(found.training)}
    assert places == {"TrainingArguments", "module", "statement", ""}


@pytest.mark.parametrize(("name", "is_a_lever"), [("output_dir", False), ("dataloader_num_workers", True)])
def test_the_call_that_makes_the_arguments_is_certain_unless_they_are_set_later(name, is_a_lever, monkeypatch):
    monkeypatch.setattr(Given, "__post_init__", Given.__post_init__)  # to be restored
    calls = Calls(Path(__file__).parent)
    watch_arguments(SimpleNamespace(TrainingArguments=Given), calls)
    found, trainer = made()
    assert [site.path for site in found.sites(calls)["TrainingArguments"]] == [__file__]
    setattr(trainer.args, name, 3)
    sites = HuggingFaceTrainer(trainer, lambda: None).sites(calls)["TrainingArguments"]
    assert (sites == ("a later assignment",)) == is_a_lever


WORKERS = Setting("TrainingArguments", {"dataloader_num_workers": "2", "dataloader_persistent_workers": "True"})


def test_a_parser_gives_options_and_a_number_from_elsewhere_a_condition(tmp_path):
    sites = {"TrainingArguments": ("transformers.hf_argparser.HfArgumentParser.parse_args_into_dataclasses",)}
    (place,) = make_patch({"workers-2": (WORKERS,)}, sites, {}, tmp_path).places
    assert place.line == "--dataloader_num_workers=2 --dataloader_persistent_workers=True"
    assert place.reason.startswith("HfArgumentParser makes the TrainingArguments: ")
    path, source = str(tmp_path / "train.py"), b"a = TrainingArguments(o, dataloader_num_workers=n)\n"
    site = Site(path, 1, "TrainingArguments", ("output_dir",), False, 1, 4, len(source) - 1)
    origins = {("TrainingArguments", "dataloader_num_workers"): None}
    patch = make_patch({"w": (WORKERS,)}, {"TrainingArguments": (site,)}, {path: source}, tmp_path, origins)
    assert "+a = TrainingArguments(o, dataloader_num_workers=n, dataloader_persistent_workers=n > 0)" in patch.diff
