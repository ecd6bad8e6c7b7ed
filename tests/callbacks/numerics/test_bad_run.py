"""Runs that go wrong in 16 bits: the step, the operator, FP32 on the same batch, and the layers that cure it."""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from lightning_perf import cli
from lightning_perf.callbacks.numerics.bad_run import CureSearch
from lightning_perf.callbacks.precision import switch as precision_switch
from lightning_perf.callbacks.precision_callback import PrecisionCallback
from lightning_perf.report.build import build_report
from lightning_perf.run_files.numerics.precision import PRECISION_NAME, read_precision
from tests.callbacks.precision_gallery import planted
from tests.callbacks.precision_training import batches
from tests.callbacks.training import make_trainer
from tests.support.schemas import load_document

pytestmark = pytest.mark.usefixtures("fp16_on_cpu")


class Exploding(nn.Module):
    """Squares its inputs. From step to step they are multiplied by more, until the square is too large for FP16."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.inner(x) * self.factor
        square = hidden * hidden  # the planted overflow
        return square / (square.amax(-1, keepdim=True) + 1)


class Net(planted.Net):
    """Overflows from a batch on. From its third batch on, its loss has a further term."""

    def __init__(self, bad_step: int = 3, term: Callable[[Any, torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__(fixed=True)
        self.bad_step, self.term = bad_step, term

    def build(self) -> None:
        del self.net
        torch.manual_seed(0)
        self.first = nn.Linear(8, 16)
        self.blocks = nn.Sequential(nn.ReLU(), Exploding(), nn.Dropout(0.2), nn.Linear(16, 16))
        self.head = nn.Linear(16, 4)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        exploding: Any = self.blocks[1]
        exploding.factor = 1e4 if batch_idx >= self.bad_step else 1.0
        loss = nn.functional.cross_entropy(self.head(self.blocks(self.first(batch[0]))), batch[1])
        return loss + self.term(self, batch[0]) if self.term is not None and batch_idx >= 2 else loss


def train(tmp_path: Any, module: Any, precision: Any = "16-mixed", **options: Any) -> PrecisionCallback:
    callback = PrecisionCallback(precision, dirpath=tmp_path / "perf", **options)
    torch.manual_seed(1)
    make_trainer(tmp_path, callback).fit(module, batches())
    return callback


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Net, PrecisionCallback]:
    """The folder, module and callback of a training that goes wrong in its step 3."""
    folder = tmp_path_factory.mktemp("diagnosed")
    module = Net()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precision_switch, "_FP16_ON_CPU", True)
        return folder, module, train(folder, module)


def test_the_operator_and_the_cure_are_found(tmp_path, diagnosed):
    _, module, callback = diagnosed
    found = callback.bad_run
    assert math.isnan(module.losses[3])
    assert (found.step, found.symptom, found.origin.layer) == (3, "loss", "blocks.1")
    assert (found.origin.operator, found.origin.value, found.origin.dtype) == ("aten::mul", "inf", "float16")
    assert found.origin.line.rpartition(":")[0].endswith("test_bad_run.py")
    assert found.origin.largest_input**2 > 65504 > found.origin.largest_input
    assert found.loss is None
    assert found.fp32_finite is True
    assert found.keep_fp32 == ("blocks.1.inner",)  # its FP32 output lets the square compute in FP32
    assert found.cured_loss == pytest.approx(found.fp32_loss, rel=0.05)

    cured = Net()
    assert train(tmp_path, cured, keep_fp32=found.keep_fp32).bad_run is None
    assert all(math.isfinite(loss) for loss in cured.losses)


def test_report_file_and_command_show_it(diagnosed, tmp_path, capsys):
    folder, _, callback = diagnosed
    assert read_precision(folder / "perf" / PRECISION_NAME).bad_run == callback.bad_run
    printed = io.StringIO()
    report = build_report((), precision=callback.result)
    report.print(file=printed, width=200)
    text = printed.getvalue()
    assert "Diagnosis\nThe loss turned NaN or infinite in step 3, from aten::mul in blocks.1 (" in text
    assert "In FP32 the loss of the same batch is 1." in text
    assert 'Fix: PerfCallback(precision="16-mixed", keep_fp32=["blocks.1.inner"]).' in text
    assert "### Diagnosis" in report.to_markdown().partition("<details>")[0]
    assert cli.main(["explain", str(folder / "perf")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("The loss turned NaN or infinite in step 3, from aten::mul in blocks.1")
    assert 'keep_fp32=["blocks.1.inner"]' in " ".join(text.split())
    markdown = tmp_path / "nan.md"
    assert cli.main(["explain", str(folder / "perf"), "--json", f"--markdown={markdown}"]) == 0
    assert "The loss turned NaN or infinite in step 3, from aten::mul" in markdown.read_text()
    assert load_document("explain", capsys.readouterr().out)["bad_run"]["keep_fp32"] == ["blocks.1.inner"]


def test_the_diagnosis_changes_no_training(tmp_path, diagnosed):
    plain, (_, watched, _) = Net(), diagnosed
    train(tmp_path, plain, diagnose="off")
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    assert str(plain.losses) == str(watched.losses)


def masked(z: torch.Tensor) -> torch.Tensor:
    return z.masked_fill(torch.ones_like(z, dtype=torch.bool), float("-inf")).softmax(-1)


FP32_FAILS: dict[str, tuple[Any, str, str]] = {
    "softmax of a masked row": (masked, "_softmax", "unmasked"),
    "masked before a cast": (lambda z: (z + float("-inf")).double().softmax(-1), "_softmax|add", ""),
    "root of zero": (lambda z: (z - z).sqrt(), "SqrtBackward0", "torch.sqrt(x + 1e-6)"),
    "root below zero": (lambda z: (z - 99).sqrt(), "sqrt", "torch.sqrt(x + 1e-6)"),
    "power of zero": (lambda z: (z - z) ** 0.5, "SqrtBackward0|PowBackward0", ""),
    "logarithm of zero": (lambda z: (z - z).log(), "log", "clamp_min"),
    "zero by zero": (lambda z: (z - z) / (z - z), "div", "divisor"),
    "infinity by infinity": (lambda z: (z + 999).double().exp() / (z + 999).double().exp(), "exp", "maximum"),
    "mean of nothing": (lambda z: z[z > 1e9].mean(), "mean", "empty"),
    "times NaN": (lambda z: z * float("nan"), "mul", "FP32 does not help"),
}


@pytest.mark.filterwarnings("ignore:Mean of empty")
@pytest.mark.parametrize("kind", FP32_FAILS)
@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_the_operator_is_named_where_fp32_fails_too(tmp_path, kind, precision):
    compute, operator, cure = FP32_FAILS[kind]

    settings = {"init_scale": 2.0} if precision == "16-mixed" else {}
    failing = Net(99, lambda net, x: compute(net.first(x).float()).sum())
    found = train(tmp_path, failing, precision, diagnose="gradients", **settings).bad_run
    assert (found.step, found.fp32_finite, found.keep_fp32) == (2, False, ())
    assert re.search(operator, found.origin.operator), found.origin.operator
    assert found.origin.line.rpartition(":")[0].endswith("test_bad_run.py")
    assert cure in found.action
    assert "the precision is not the cause" in " ".join(found.evidence)
    assert "float32" not in " ".join(found.evidence)  # that pass was in FP32 on purpose
    # Gradients of a scaled loss may overflow until no scale is left.
    assert found.replayed_step == (4 if (precision, found.symptom) == ("16-mixed", "gradients") else 2)
    evidence = replace(found, replayed_step=2).evidence
    later = replace(found, replayed_step=7)
    assert later.evidence == ("The batch of step 7 was run again. That of step 2 was gone.", *evidence)


def test_the_first_skipped_step_is_named_although_the_scale_falls_for_a_while(tmp_path):
    class Rooted(Net):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            hidden = self.first(batch[0]).float()
            loss = nn.functional.cross_entropy(self.head(hidden), batch[1])
            return loss + (hidden - hidden).sqrt().sum() if self.global_step >= 2 else loss

    callback = PrecisionCallback("16-mixed", dirpath=tmp_path / "perf", init_scale=4.0)
    make_trainer(tmp_path, callback, max_epochs=2).fit(Rooted(), batches())
    found = callback.bad_run
    assert (found.step, found.origin.operator, found.symptom) == (2, "SqrtBackward0", "gradients")


PLACES: dict[str, tuple[Any, Any]] = {
    "a tensor": (lambda x, y: (x, y), lambda batch: batch),
    "a dict": (lambda x, y: {"x": x, "y": y}, lambda batch: (batch["x"], batch["y"])),
    "nested": (lambda x, y: {"inputs": [{"x": x}], "y": y}, lambda batch: (batch["inputs"][0]["x"], batch["y"])),
}


@pytest.mark.parametrize(("place", "bad"), [*((place, float("nan")) for place in PLACES), ("a dict", float("inf"))])
def test_bad_values_in_the_batch_are_the_cause(tmp_path, place, bad):
    pack, unpack = PLACES[place]

    class Reading(Net):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return super().training_step(unpack(batch), 0)

        def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            x, y = batch[0].clone(), batch[1]
            if self.global_step == 2:
                x[5, 3] = bad
            return pack(x, y)

    found = train(tmp_path, Reading()).bad_run
    assert found.title == "The loss turned NaN or infinite in step 2, from NaN or inf in the batch"
    assert "holds 1 NaN or infinite values, in 1 of 8 samples, first 5." in found.evidence[0]
    assert "isfinite" in found.action


def test_infinities_that_the_model_masks_are_not_blamed(tmp_path):
    class Masking(Net):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x = batch[0].clone()
            x[0, 0] = float("inf")
            x = torch.where(torch.isfinite(x), x, torch.zeros_like(x))
            loss: torch.Tensor = super().training_step((x, batch[1]), 0)
            return loss + (x - x).sum().requires_grad_().log() if batch_idx == 2 else loss

    found = train(tmp_path, Masking()).bad_run
    assert (found.batch, found.origin.operator) == ((), "aten::log")


def test_the_first_bad_weight_is_named(tmp_path):
    class Broken(Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                with torch.no_grad():
                    self.head.bias[0] = float("nan")

    found = train(tmp_path, Broken()).bad_run
    assert found.bad_weight == "head.bias"
    assert "head.bias is the first" in found.evidence[0]


def test_an_operator_outside_of_layers_has_no_cure_by_layers(tmp_path):
    def outside(net: Any, x: torch.Tensor) -> torch.Tensor:
        scaled = (net.first(x) * 3e4).half() * 100.0
        return (scaled - scaled).float().sum() * 0.0

    found = train(tmp_path, Net(99, outside)).bad_run
    assert (found.origin.layer, found.fp32_finite, found.keep_fp32) == ("", False, ())


def test_nan_gradients_under_bf16_are_found_before_the_step(tmp_path):
    class Root(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # In bf16 1 + 1e-4 is 1. The root of the zero that remains has an infinite slope.
            return x + (x.abs() * 1e-4 + 1 - 1).sqrt()

    class Rooted(Net):
        def __init__(self) -> None:
            super().__init__(bad_step=99)
            self.root = Root()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            hidden = self.first(batch[0])
            hidden = self.root(hidden) if batch_idx >= 2 else hidden
            return nn.functional.cross_entropy(self.head(hidden), batch[1])

    found = train(tmp_path / "gradients", Rooted(), "bf16-mixed", diagnose="gradients").bad_run
    assert (found.step, found.symptom, found.origin.backward) == (2, "gradients", True)
    assert found.origin.layer == "root"
    assert found.keep_fp32 == ("root",)
    late = train(tmp_path / "loss", Rooted(), "bf16-mixed").bad_run
    assert late.bad_weight
    assert "diagnose='gradients'" in late.action


def test_the_option_is_checked():
    with pytest.raises(ValueError, match="diagnose='nan' is unknown: give 'loss', 'gradients' or 'off'"):
        PrecisionCallback("16-mixed", diagnose="nan")


def test_explain_without_a_diagnosis_or_a_run(tmp_path, capsys):
    assert train(tmp_path, Net(bad_step=99)).bad_run is None
    capsys.readouterr()
    assert cli.main(["explain", str(tmp_path / "perf")]) == 0
    assert "No step of this run" in capsys.readouterr().out
    assert cli.main(["explain", str(tmp_path)]) == 2
    assert "no precision.json in it" in capsys.readouterr().err
    assert cli.main(["explain", str(tmp_path / "absent")]) == 2
    assert "absent: no such folder. Give the folder of a run" in capsys.readouterr().err


# The search for layers to keep in FP32, against all subsets.


def make_net() -> nn.Module:
    block = lambda: nn.ModuleDict({"attention": nn.Linear(1, 1), "mlp": nn.Sequential(nn.Linear(1, 1), nn.ReLU())})  # noqa: E731
    return nn.ModuleDict({"stem": nn.Linear(1, 1), "first": block(), "second": block(), "head": nn.Linear(1, 1)})


LEAVES = [name for name, layer in make_net().named_modules() if name and not list(layer.children())]


def covered(names: tuple[str, ...]) -> set[str]:
    return {leaf for leaf in LEAVES for name in names if leaf == name or leaf.startswith(f"{name}.")}


@pytest.mark.parametrize("needed", [*itertools.combinations(LEAVES, 1), *itertools.combinations(LEAVES, 2)])
@pytest.mark.parametrize("suspect", ["", "first.mlp.1", "head"])
def test_exactly_the_needed_layers_are_found(needed, suspect):
    search = CureSearch(make_net(), lambda names: set(needed) <= covered(names))
    assert search.find(suspect) == needed
    assert search.trials <= 40


def test_a_container_with_operators_of_its_own_is_kept_whole():
    search = CureSearch(make_net(), lambda names: "second" in names)
    assert search.find("second.mlp.0") == ("second",)


def test_nothing_is_found_where_nothing_helps():
    assert CureSearch(make_net(), lambda names: False).find("head") is None


def test_the_best_so_far_is_returned_when_the_trials_are_used_up():
    search = CureSearch(make_net(), lambda names: {"stem", "head"} <= covered(names), max_trials=1)
    assert search.find("") == ("stem", "first", "second", "head")
    assert search.trials == 1


def test_the_time_ends_a_search_too():
    times = itertools.chain([0.0, 1.0], itertools.repeat(100.0))
    search = CureSearch(make_net(), lambda names: "head" in names, max_seconds=10.0, clock=lambda: next(times))
    assert search.find("") == ("stem", "first", "second", "head")
