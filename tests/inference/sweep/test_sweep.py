from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_perf.cli import main
from lightning_perf.inference.counting.count import count_model
from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.measurement.measure import Effort
from lightning_perf.inference.measurement.messages import Time, Timed
from lightning_perf.inference.sweep import sweep as sweeping
from lightning_perf.inference.sweep.document import Sweep
from lightning_perf.inference.sweep.render import draw_sweep
from lightning_perf.inference.sweep.sweep import sweep_backbones
from tests.support.schemas import load_document

BRIEF = Effort(seconds=0.01, rounds=4, warmup=0, rewarm=0, least_calls=2, most_calls=3)


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


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of this file, and a clock that takes as many milliseconds as a network has filters."""

    def make(name: str, shape: tuple[int, ...], classes: int, batch: int) -> tuple[nn.Module, Any]:
        if name not in NETWORKS:
            raise VariantError(f"nobody has a model {name!r}")
        module = NETWORKS[name]()
        return module, count_model(module, shape, batch)

    def clock(module: nn.Module, inputs: Tensor, device: torch.device, request: Time) -> Timed:
        out = module(inputs)
        return Timed((10**6 * out.shape[1],) * request.least, (10**6,) * request.least, ())

    monkeypatch.setattr(sweeping, "make_backbone", make)
    monkeypatch.setattr(sweeping, "time_calls", clock)
    monkeypatch.setattr("lightning_perf.inference.counting.peaks.SECONDS", 0.0)


@pytest.fixture
def sweep() -> Sweep:
    names = ["slow", "late", "fast", "nosuch", "middle", "fast"]
    return sweep_backbones(names, (1, 10, 10), classes=5, batch=2, effort=BRIEF)


def test_rows_are_sorted_and_failures_have_reasons(sweep: Sweep):
    assert [row.name for row in sweep.rows] == ["fast", "middle", "slow", "late", "nosuch"]
    fast, middle, slow, late, nosuch = sweep.rows
    assert [row.latency and row.latency.p50_ms for row in (fast, middle, slow)] == [2, 8, 24]
    assert slow.latency is not None
    assert slow.latency.speedup is None
    assert fast.latency is not None
    assert fast.latency.speedup is not None
    assert fast.latency.speedup.value == pytest.approx(12)
    assert (late.latency, nosuch.latency) == (None, None)
    assert late.reason == "it does not run (RuntimeError: out of memory)"
    assert nosuch.reason == "nobody has a model 'nosuch'"
    assert middle.macs == 2 * 64 * 8 * 9
    assert middle.parameters == 8 * 9 + 8
    assert middle.size_bytes == 4 * middle.parameters
    assert middle.bound_ms is not None
    assert middle.efficiency == pytest.approx(middle.bound_ms / 8)
    assert sweep.macs_correlation == pytest.approx(1)
    assert sweep.noise is not None
    assert sweep.noise.value == pytest.approx(1)


def test_the_document_survives_json(sweep: Sweep):
    assert Sweep.from_json(sweep.to_json()) == sweep
    with pytest.raises(InferenceError, match="is not a sweep"):
        Sweep.from_json("[]")
    with pytest.raises(InferenceError, match=r"schema version 9.*upgrade"):
        Sweep.from_json(replace(sweep, schema_version=9).to_json())


def test_threads_stay_as_they_were():
    before = torch.get_num_threads()
    sweep_backbones(["fast"], (1, 10, 10), threads=before + 1, effort=BRIEF)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"names": []}, "No backbones are given"),
        ({"input_shape": (10, 10)}, "channels, height and width"),
        ({"input_shape": (1, 0, 10)}, "channels, height and width"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"classes": 0}, "classes must be at least 1"),
        ({"device": "meta"}, "cpu or cuda"),
    ],
)
def test_bad_settings_are_errors(arguments: dict[str, Any], words: str):
    with pytest.raises(InferenceError, match=words):
        sweep_backbones(**{"names": ["fast"], "input_shape": (1, 10, 10)} | arguments)


def test_the_table_shows_all_rows(sweep: Sweep):
    stream = io.StringIO()
    sweep.print(file=stream, width=100)
    text = stream.getvalue()
    assert "input 1×10×10, batch 2" in text
    for words in ("fast", "middle", "slow", "2.00 ms", "12.0×", "late: it does not run", "nosuch: nobody has a model"):
        assert words in text
    assert "speed: speed-up over slow." in text
    markdown = sweep.to_markdown().replace("\\", "")
    assert "| fast |" in markdown
    assert all(line in markdown for line in ("- nosuch: nobody has a model", "- speed: speed-up over slow."))


def test_the_plot_shows_each_network_and_the_peak(sweep: Sweep, tmp_path: Path):
    pytest.importorskip("matplotlib", reason="needs the compare extra")
    (axes,) = draw_sweep(sweep).axes
    texts: list[Any] = list(axes.texts)
    named = {text.get_text(): text.xy for text in texts}
    assert named == {row.name: (row.macs / 1e9, row.latency.p50_ms) for row in sweep.rows if row.macs and row.latency}
    assert list(named) == ["slow", "middle", "fast"]
    peak = axes.lines[0]
    macs = [row.macs for row in sweep.rows if row.macs]
    drawn: Any = peak.get_ydata()
    assert list(drawn) == pytest.approx([2e3 * m / sweep.peaks.flops_per_s for m in (min(macs), max(macs))])
    sweep.save_plot(tmp_path / "new" / "sweep.png")
    assert (tmp_path / "new" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InferenceError, match=r"sweep\.xyz"):
        sweep.save_plot(tmp_path / "sweep.xyz")
    nothing = replace(sweep, rows=sweep.rows[-2:])
    with pytest.raises(InferenceError, match="nothing to plot"):
        draw_sweep(nothing)


def test_the_command_writes_what_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "new"
    arguments = ["sweep", "slow", "fast", "--shape", "1,10,10", "--seconds", "0.01", "--out", str(out)]
    arguments += ["--markdown", str(tmp_path / "sweep.md"), "-q"]
    assert main(arguments) == 0
    streams = capsys.readouterr()
    assert "fast" in streams.out
    assert streams.err == ""
    sweep = Sweep.load(out / "sweep.json")
    assert [row.name for row in sweep.rows] == ["fast", "slow"]
    assert (tmp_path / "sweep.md").read_text(encoding="utf-8") == sweep.to_markdown()
    assert main([*arguments, "--json"]) == 0
    printed = capsys.readouterr().out
    assert Sweep.from_json(printed).batch == 1
    assert load_document("sweep", printed)


def test_the_commands_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["sweep", "nosuch", "--shape", "1,10,10"]) == 1
    assert "nobody has a model" in capsys.readouterr().out
    assert main(["sweep", "fast", "--shape", "1,10,10", "--device", "meta"]) == 2
    assert "cpu or cuda" in capsys.readouterr().err
    (tmp_path / "file").touch()
    bad = str(tmp_path / "file")
    assert main(["sweep", "fast", "--shape", "1x10x10", "--seconds", "0.01", "--out", bad]) == 2
    assert "cannot be written" in capsys.readouterr().err
    for wrong in (["--shape", "10,10"], ["--shape", "a,b,c"], ["--seconds", "0"], ["--batch-size", "-1"]):
        with pytest.raises(SystemExit) as left:
            main(["sweep", "fast", *wrong])
        assert left.value.code == 2


def test_one_real_network_end_to_end(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torchvision", reason="needs the recipes extra")
    monkeypatch.undo()
    monkeypatch.setattr("lightning_perf.inference.counting.peaks.SECONDS", 0.0)
    (row,) = sweep_backbones(["squeezenet1_1"], (1, 32, 32), classes=3, effort=BRIEF).rows
    assert row.reason is None
    assert row.latency is not None
    assert row.latency.p50_ms > 0
    assert row.efficiency is not None
    assert math.isfinite(row.efficiency)
