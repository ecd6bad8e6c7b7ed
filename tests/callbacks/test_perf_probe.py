"""`PerfCallback(probe=…)`: the training is the same with and without it, and a fault of the probe is one warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_perf import PerfCallback, analyze
from lightning_perf.callbacks.report import PROBE_SHARE, probe_seconds
from lightning_perf.run_files.probe import PROBE_NAME, read_probe
from tests.callbacks.perf_training import fit, quick
from tests.callbacks.training import PACKAGES, failing, make_module


def weights_after(folder: Path, probe: float | bool) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    torch.manual_seed(3)
    trained = make_module(PACKAGES[0])
    fit(folder, module=trained, callback=quick(probe=probe, dirpath=folder / "run"))
    return {name: tensor.clone() for name, tensor in trained.state_dict().items()}, torch.get_rng_state()


def test_results_are_the_same_bit_for_bit(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    without, random = weights_after(tmp_path / "without", False)
    probed, random_probed = weights_after(tmp_path / "with", 1.0)
    assert torch.get_num_threads() == threads
    assert torch.equal(random, random_probed)
    assert without.keys() == probed.keys()
    assert all(torch.equal(without[name], probed[name]) for name in without)
    assert not (tmp_path / "without" / "run" / PROBE_NAME).exists()
    probe = read_probe(tmp_path / "with" / "run" / PROBE_NAME)
    assert probe.changes
    report = analyze(tmp_path / "with" / "run")
    assert report.ranks[0].probe == probe
    assert not [note for note in report.notes if "probe" in note]


def test_a_probe_of_other_traces_is_left_out(tmp_path: Path) -> None:
    weights_after(tmp_path, 0.5)
    (trace,) = (tmp_path / "run").glob("rank0*")
    trace.rename(trace.with_name(trace.name.replace("rank0.", "rank0.1")))
    report = analyze(tmp_path / "run")
    assert report.ranks[0].probe is None
    assert "The probe is left out: it was made of other traces. Run lightning-perf analyze --probe." in report.notes


def test_a_fault_of_the_probe_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_perf.probe.run.probe_path", failing(RuntimeError("a fault")))
    with pytest.warns(RuntimeWarning, match="the recorded operators are not probed.*a fault"):
        weights_after(tmp_path, True)
    assert (tmp_path / "run" / "report.json").exists()


@pytest.mark.parametrize(
    ("probe", "fit_s", "ranks", "seconds"),
    [
        (None, 49.0, 1, 0.0),
        (None, 50.0, 1, 5.0),
        (None, 500.0, 2, 0.0),
        (False, 500.0, 1, 0.0),
        (True, 1.0, 1, 5.0),
        (2.5, 1.0, 4, 2.5),
    ],
)
def test_how_long_a_probe_takes(probe: float | bool | None, fit_s: float, ranks: int, seconds: float) -> None:
    assert probe_seconds(probe, fit_s, ranks) == seconds
    assert PROBE_SHARE == 0.1


@pytest.mark.parametrize("probe", [0, -1, 0.0, float("inf"), float("nan"), "yes"])
def test_seconds_must_be_positive(probe: Any) -> None:
    error, message = (TypeError, "must be True, False, None or") if probe == "yes" else (ValueError, "greater than 0")
    with pytest.raises(error, match=message):
        PerfCallback(probe=probe)
