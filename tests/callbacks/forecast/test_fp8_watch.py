"""FP8 trainings: torchao's layers on the CPU, where it emulates, and stand-ins for Transformer Engine's."""

from __future__ import annotations

import io
import json
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightning_perf import PerfCallback, analyze
from lightning_perf.callbacks.forecast.fp8_watch import fp8_layers
from lightning_perf.report.document import PerfReport
from lightning_perf.run_files.numerics.samples import FP8
from tests.callbacks.training import PACKAGES, loader, make_module, make_trainer
from tests.support.processes import fork_ranks

SCRIPT = """
import json, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
from torchao.float8.float8_training_tensor import GemmInputRole, LinearMMConfig
from tests.callbacks.training import loader, make_module, make_trainer
from lightning_perf import PerfCallback

folder = Path(sys.argv[1])
emulated = Float8LinearConfig(emulate=True)
seen = {}

def build(spike):
    def loss(self, batch):
        inputs = torch.cat([batch[0]] * 4, 1)
        inputs = torch.cat([inputs + 0.01, torch.full_like(inputs, spike)])
        out = self.head(self.body(inputs).relu())
        seen.setdefault("inputs", inputs)
        return torch.nn.functional.cross_entropy(out[: len(batch[1])], batch[1])
    module = make_module(loss=loss)
    torch.manual_seed(0)
    module.layer = torch.nn.Identity()
    module.body, module.head = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)
    convert_to_float8_training(module, config=emulated)
    return module

def fit(module, callback):
    torch.manual_seed(1)
    make_trainer(folder, callback).fit(module, loader(4, 4))
    return module

ours = build(3e6)
inputs_weight = ours.body.weight.detach().clone()
fit(ours, PerfCallback(report="none", dirpath=folder / "perf", active=1))
plain = fit(build(3e6), None)
same = all(torch.equal(a, b) for a, b in zip(ours.parameters(), plain.parameters(), strict=True))
config = LinearMMConfig()
def flushed(tensor, dtype):
    cast = hp_tensor_to_float8_dynamic(tensor, dtype, config, gemm_input_role=GemmInputRole.INPUT)
    return int(((cast.to_original_precision() == 0) & (tensor != 0)).sum()), float(cast._scale)
print(json.dumps([same, flushed(seen["inputs"], torch.float8_e4m3fn), flushed(inputs_weight, torch.float8_e4m3fn)]))
"""


def test_torchao_by_its_own_casts(tmp_path):
    """In a process of its own: torchao warns when it is imported."""
    (tmp_path / "script.py").write_text(SCRIPT)
    run = fork_ranks(str(tmp_path / "script.py"), str(tmp_path), ranks=1, timeout_s=280)
    if "No module named 'torchao'" in run.stderr:
        pytest.skip("torchao is not installed")
    assert run.returncode == 0, run.stderr
    same, (flushed, scale), (weight_flushed, weight_scale) = json.loads(run.stdout.splitlines()[-1])
    assert same
    samples = {sample.layer: sample for sample in FP8.read(FP8.path(tmp_path / "perf", 0))}
    assert set(samples) == {"body", "head"}
    body = samples["body"]
    assert (body.step, body.library) == (0, "torchao")
    activation, weight, gradient = (body.tensors[name] for name in ("activation", "weight", "gradient"))
    assert (activation.format, gradient.format) == ("e4m3", "e5m2")
    assert (activation.flushed, activation.scale) == (flushed, pytest.approx(scale, rel=1e-6))
    assert flushed > 0
    assert (weight.flushed, weight.scale) == (weight_flushed, pytest.approx(weight_scale, rel=1e-6))
    assert activation.saturated == weight.saturated == 0
    found = analyze(tmp_path / "perf").fp8
    assert found.rows[0].layer == "body"
    # The outliers also dominate the input of the second layer.
    assert found.summary == "2 of 2 FP8 layers saturate, or flush more than 10 % of a tensor's values."


def te_layer(meta: dict[str, Any]) -> Any:
    """A stand-in for a linear layer of Transformer Engine."""

    class Linear(nn.Linear):
        pass

    Linear.__module__ = "transformer_engine.pytorch.module.linear"
    layer = Linear(4, 4)
    layer.fp8_meta = meta  # type: ignore[assignment]
    return layer


def scaling(scale: list[float], *history: list[float]) -> types.SimpleNamespace:
    return types.SimpleNamespace(scale=torch.tensor(scale), amax_history=torch.tensor(history))


DELAYED = {
    "scaling_fwd": scaling([100.0, 50.0, 1.0], [3.0, 8.0, 0.0], [4.0, 2.0, 0.0]),
    "scaling_bwd": scaling([1e4, 1.0], [2.0, 0.0], [6.0, 0.0]),
    "recipe": types.SimpleNamespace(),
}


def train(folder: Path, name: str, *layers: Any) -> PerfReport:
    module = make_module(name)
    module.layer[0] = nn.Sequential(nn.Linear(4, 4), *layers, nn.Linear(4, 8))
    assert list(fp8_layers(module)) == ["layer.0.1"][: len(layers)]
    make_trainer(folder, PerfCallback(report="none", dirpath=folder / "perf"), name).fit(module, loader(3))
    return analyze(folder / "perf")


@pytest.mark.parametrize("name", PACKAGES)
def test_transformer_engine_by_its_documented_attributes(tmp_path, name):
    report = train(tmp_path, name, te_layer(DELAYED))
    (sample,) = FP8.read(FP8.path(tmp_path / "perf", 0))
    assert (sample.layer, sample.library) == ("layer.0.1", "transformer-engine")
    activation, weight, gradient = (sample.tensors[each] for each in ("activation", "weight", "gradient"))
    assert (activation.format, activation.largest, activation.scale) == ("e4m3", 4.0, 100.0)
    assert (weight.largest, weight.values) == (8.0, None)
    assert (gradient.format, gradient.largest, gradient.scale) == ("e5m2", 6.0, 1e4)
    by_tensor = {row.tensor: row for row in report.fp8.rows}
    # 4 · 100 and 8 · 50 fit into 448, but 6 · 10,000 exceeds 57,344.
    assert [by_tensor[each].saturated_steps for each in ("activation", "weight", "gradient")] == [0, 0, 1]
    assert by_tensor["gradient"].flushed is None
    stream = io.StringIO()
    report.print(file=stream, width=100)
    text = " ".join(stream.getvalue().split())
    assert "FP8 layers 1 of 1 FP8 layers saturate" in text
    assert "layer.0.1 gradient e5m2 6 1e+04 – – 1 of 1" in text


@pytest.mark.parametrize("layers", [(), (te_layer({"recipe": None}),)], ids=["no layer", "no history"])
def test_without_a_history_there_is_no_file(tmp_path, layers):
    assert train(tmp_path, PACKAGES[0], *layers).fp8 is None
    assert not FP8.path(tmp_path / "perf", 0).exists()
