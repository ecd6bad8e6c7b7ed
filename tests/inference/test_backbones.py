"""Backbones: how they are made, timed, shown and written."""

import io
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from lightning_perf.cli import main
from lightning_perf.inference import backbones
from lightning_perf.inference.backbones import DEFAULT_BACKBONES, make_backbone, sweep_backbones
from lightning_perf.inference.counting.count import count_model
from lightning_perf.inference.counting.document import Peaks
from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.measurement.measure import Effort, Time, Timed
from lightning_perf.inference.results.page import draw_sweep
from lightning_perf.inference.results.tradeoff import Sweep
from tests.support.schemas import load_document

BRIEF = Effort(seconds=0.01, rounds=4, warmup=0, rewarm=0, least_calls=2, most_calls=3)
TORCHVISION = "torchvision:mobilenet_v3_small"
TIMM = ("timm:mobilenetv4_conv_small_035", "timm:vit_tiny_patch16_224")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("a backbone asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(backbones, "find_peaks", lambda *_, **__: PEAKS)


PEAKS = Peaks("a CPU", "float32", 1, 1e9, 1e9, "made up")


@pytest.mark.parametrize(("name", "channels"), [(TORCHVISION, 1), ("squeezenet1_1", 3), *((name, 1) for name in TIMM)])
def test_networks_get_channels_classes_and_size(name: str, channels: int):
    pytest.importorskip("timm" if name in TIMM else "torchvision", reason="needs the recipes and timm extras")
    module, count = make_backbone(name, (channels, 64, 64), 24, batch=2)
    with torch.inference_mode():
        assert module(torch.zeros(2, channels, 64, 64)).shape == count.output_shape == (2, 24)
    assert not module.training
    assert count.parameters == sum(p.numel() for p in module.parameters())


def test_transformers_of_torchvision_are_built_for_the_size():
    pytest.importorskip("torchvision", reason="needs the recipes extra")
    with torch.device("meta"):  # 88 million weights that nobody needs
        module, count = make_backbone("vit_b_32", (3, 64, 64), 5)
    assert module.image_size == 64
    assert count.output_shape == (1, 5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nosuch", "neither torchvision nor timm has a model 'nosuch'"),
        ("torchvision:nosuch", "torchvision has no model 'nosuch'"),
        ("keras:resnet50", "unknown source 'keras'"),
        ("alexnet", "does not take such inputs"),
        ("hf-hub:timm/resnet18.a1_in1k", "unknown source 'hf-hub'"),
        ("timm:hf_hub/resnet18", "timm has no model"),
    ],
)
def test_bad_names_and_shapes_are_reasons(name: str, said: str):
    pytest.importorskip("timm", reason="needs the timm extra")
    with pytest.raises(VariantError, match=said):
        make_backbone(name, (3, 16, 16), 5)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backbones, "find_spec", lambda name: None)
    with pytest.raises(VariantError, match="Not installed: torchvision, timm"):
        make_backbone("resnet18", (3, 64, 64), 5)
    with pytest.raises(VariantError, match=r"Not installed: timm\. Install with: pip install"):
        make_backbone("timm:resnet18", (3, 64, 64), 5)


def test_default_names_exist():
    models = pytest.importorskip("torchvision.models", reason="needs the recipes extra")
    assert set(DEFAULT_BACKBONES) <= set(models.list_models(module=models))


class Late(nn.Module):
    """Fails when it is really run."""

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.device.type != "meta":
            raise RuntimeError("out of memory")
        return inputs


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "slow": lambda: nn.Conv2d(1, 24, 3),
    "fast": lambda: nn.Conv2d(1, 2, 3),
    "middle": lambda: nn.Conv2d(1, 8, 3),
    "late": Late,
}


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of this file, and a clock that takes as many milliseconds as a network has filters."""

    def make(name: str, shape: tuple[int, ...], classes: int, batch: int) -> tuple[nn.Module, Any]:
        if name not in NETWORKS:
            raise VariantError(f"nobody has a model {name!r}")
        module = NETWORKS[name]()
        return module, count_model(module, shape, batch)

    def clock(module: nn.Module, inputs: Tensor, device: torch.device, request: Time) -> Timed:
        out = module(inputs)
        return Timed((10**6 * out.shape[1],) * request.least, (10**6,) * request.least, ())

    monkeypatch.setattr(backbones, "make_backbone", make)
    monkeypatch.setattr(backbones, "time_calls", clock)


@pytest.fixture
def sweep(made_up: None) -> Sweep:
    names = ["slow", "late", "fast", "nosuch", "middle", "fast"]
    threads = torch.get_num_threads()
    made = sweep_backbones(names, (1, 10, 10), classes=5, batch=2, threads=threads + 1, effort=BRIEF)
    assert torch.get_num_threads() == threads
    return made


def test_rows_are_sorted_and_failures_have_reasons(sweep):
    assert [row.name for row in sweep.rows] == ["fast", "middle", "slow", "late", "nosuch"]
    fast, middle, slow, late, nosuch = sweep.rows
    assert [row.latency and row.latency.p50_ms for row in sweep.rows] == [2, 8, 24, None, None]
    assert slow.latency.speedup is None
    assert fast.latency.speedup.value == pytest.approx(12)
    assert late.reason == "it does not run (RuntimeError: out of memory)"
    assert nosuch.reason == "nobody has a model 'nosuch'"
    assert (middle.macs, middle.parameters, middle.size_bytes) == (2 * 64 * 8 * 9, 80, 4 * 80)
    assert middle.bound_ms == pytest.approx(2e3 * middle.macs / PEAKS.flops_per_s)
    assert middle.efficiency == pytest.approx(2e3 * middle.macs / PEAKS.flops_per_s / 8)
    assert sweep.macs_correlation == pytest.approx(1)
    assert sweep.noise.value == pytest.approx(1)
    assert Sweep.from_json(sweep.to_json()) == sweep


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"names": []}, "No backbones are given"),
        ({"input_shape": (10, 10)}, "channels, height and width"),
        ({"input_shape": (1, 0, 10)}, "channels, height and width"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"device": "meta"}, "cpu or cuda"),
    ],
)
def test_bad_settings_are_errors(arguments: dict[str, Any], words: str):
    with pytest.raises(InferenceError, match=words):
        sweep_backbones(**{"names": ["fast"], "input_shape": (1, 10, 10)} | arguments)


def test_the_table_shows_all_rows(sweep: Sweep):
    stream = io.StringIO()
    sweep.print(file=stream, width=100)
    markdown = sweep.to_markdown().replace("\\", "")
    for text in (stream.getvalue(), markdown):
        assert "input 1×10×10, batch 2" in text
        for words in ("fast", "middle", "slow", "2.00 ms", "12.0×", "speed: speed-up over slow."):
            assert words in text
        assert "late: it does not run" in text
        assert "nosuch: nobody has a model" in text


def test_the_plot_shows_each_network_and_the_peak(sweep: Sweep, tmp_path: Path):
    pytest.importorskip("matplotlib", reason="needs the compare extra")
    (axes,) = draw_sweep(sweep).axes
    texts: list[Any] = list(axes.texts)
    named = {text.get_text(): text.xy for text in texts}
    assert named == {row.name: (row.macs / 1e9, row.latency.p50_ms) for row in sweep.rows if row.macs and row.latency}
    macs = [row.macs for row in sweep.rows if row.macs]
    (peak,) = (line for line in axes.lines if str(line.get_label()).startswith("at the peak rate"))
    drawn: Any = peak.get_ydata()
    assert list(drawn) == pytest.approx([2e3 * m / sweep.peaks.flops_per_s for m in (min(macs), max(macs))])
    sweep.save_plot(tmp_path / "new" / "sweep.png")
    assert (tmp_path / "new" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InferenceError, match=r"sweep\.xyz"):
        sweep.save_plot(tmp_path / "sweep.xyz")
    with pytest.raises(InferenceError, match="nothing to plot"):
        draw_sweep(replace(sweep, rows=sweep.rows[-2:]))


@pytest.mark.usefixtures("made_up")
def test_the_command_writes_what_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "new"
    arguments = ["infer", "--backbones", "slow,fast", "--shape", "1,10,10", "--seconds", "0.01", "--out", str(out)]
    arguments += ["--markdown", str(tmp_path / "sweep.md"), "-q"]
    assert main(arguments) == 0
    streams = capsys.readouterr()
    assert "fast" in streams.out
    assert streams.err == ""
    sweep = Sweep.load(out / "sweep.json")
    assert [row.name for row in sweep.rows] == ["fast", "slow"]
    assert (tmp_path / "sweep.md").read_text(encoding="utf-8") == sweep.to_markdown()
    assert main([*arguments, "--json", "--batch-sizes", "3,8"]) == 0
    printed = capsys.readouterr().out
    assert Sweep.from_json(printed).batch == 3
    assert load_document("infer", printed)


@pytest.mark.usefixtures("made_up")
def test_without_a_name_the_defaults_are_timed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backbones, "DEFAULT_BACKBONES", ("fast", "middle"))
    assert main(["infer", "--shape", "1,10,10", "--seconds", "0.01", "--json", "-q", "--backbones"]) == 0
    assert [row.name for row in Sweep.from_json(capsys.readouterr().out).rows] == ["fast", "middle"]


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nosuch", "--shape", "1,10,10"], 1, "nobody has a model"),
        (["fast", "--shape", "1,10,10", "--device", "meta"], 2, "cpu or cuda"),
        (["fast", "--shape", "10,10"], 2, "channels, height and width"),
        (["fast", "--data", "a:b"], 2, "--data: does not go with --backbones"),
        (["fast", "--max-latency-ms", "3"], 2, "--max-latency-ms: does not go with --backbones"),
        (["fast", "--shape", "1,10,10", "--seconds", "0.01", "--out", __file__], 2, "cannot be written"),
    ],
)
def test_the_commands_exit_codes(arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["infer", "--backbones", *arguments]) == code
    streams = capsys.readouterr()
    assert said in (streams.out if code == 1 else streams.err)


def test_one_real_network_end_to_end():
    pytest.importorskip("torchvision", reason="needs the recipes extra")
    (row,) = sweep_backbones(["squeezenet1_1"], (1, 32, 32), classes=3, effort=BRIEF).rows
    assert row.reason is None
    assert row.latency.p50_ms > 0
    assert 0 < row.efficiency < float("inf")
