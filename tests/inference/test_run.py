import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from lightning_perf.inference import Effort, MeasureOptions, Validation, load_artefact, measure_variants, run
from lightning_perf.inference.counting.roofline import Peaks
from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.results.tradeoff import Tradeoff
from lightning_perf.inference.run import save_document
from tests.inference.support import InPlace, Random, Tiny, row, tradeoff

PICTURES = torch.zeros(2, 1, 8, 8)
QUICK = Effort(seconds=0.02, rounds=6, warmup=1, rewarm=1)


def data(n=60):
    inputs = torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        labels = Tiny().eval()(inputs).argmax(1)
    labels[::6] = (labels[::6] + 1) % 5
    return Validation(inputs, labels)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One measurement for all tests of it: each variant takes processes that import torch."""
    out = tmp_path_factory.mktemp("variants")
    options = MeasureOptions(
        variants=["share-1bit", "prune-50", "tensorrt-fp16"],
        batch_sizes=(1, 3),
        effort=QUICK,
        labels=tuple("abcde"),
        out=out,
        max_accuracy_drop_points=0,
    )
    return measure_variants(Tiny(), validation=data(), options=options), out


def test_rows_come_in_order_and_failures_have_reasons(measured):
    document, _ = measured
    assert [row.variant for row in document.rows] == ["eager", "share-1bit+eager", "prune-50+eager", "tensorrt-fp16"]
    eager, shared, pruned, engine = document.rows
    assert eager.reason is None
    assert shared.reason is None
    if find_spec("torch_pruning") is not None:
        assert "needs training data" in pruned.reason
    assert engine.reason
    assert pruned.latencies == engine.latencies == ()


def test_the_figures_are_those_of_the_model(measured):
    document, _ = measured
    eager, shared, *_ = document.rows
    assert (eager.accuracy.correct, eager.accuracy.n, eager.accuracy.agreement) == (50, 60, 1)
    assert shared.accuracy.agreement < 1
    assert eager.parameters == sum(p.numel() for p in Tiny().parameters())
    assert eager.output_error < 1e-6 < shared.output_error
    assert eager.packed_bytes is None
    assert shared.packed_bytes < 0.9 * 4 * eager.parameters
    assert [(latency.threads, latency.batch) for latency in eager.latencies] == [(1, 1), (1, 3)]
    assert eager.latencies[0].speedup is None
    assert shared.latencies[0].speedup.value > 0
    assert document.recommendation.variant == "eager"
    assert document.count.macs == 8 * 9 * 36 + 8 * 5
    assert document.roofline.bound_ms > 0
    assert any("calibrated on the 60 timed inputs" in note for note in document.notes)


def test_a_bound_that_the_model_beats_is_measured_again_and_left_out(monkeypatch):
    asked = []

    def busy(device, threads, dtype=torch.float32, *, working_set_bytes):
        asked.append(threads)
        return Peaks("A CPU", "float32", threads, 1.0, 1.0, "measured here: slowly")

    monkeypatch.setattr(run, "find_peaks", busy)
    options = MeasureOptions(variants=["eager"], batch_sizes=(1,), effort=QUICK)
    document = measure_variants(Tiny(), inputs=PICTURES, options=options)
    assert len(asked) == 3
    assert document.count is not None
    assert document.roofline is None
    assert any("left out: eager is faster than the rates" in note for note in document.notes)


def test_the_highest_of_several_rates_count():
    one, other = (Peaks("A CPU", "float32", 1, flops, speed, "measured here") for flops, speed in ((2, 3), (1, 4)))
    assert one.highest(other) == other.highest(one) == Peaks("A CPU", "float32", 1, 2, 4, "measured here")


def test_what_is_kept_loads_and_gives_the_same(measured):
    document, out = measured
    assert Tradeoff.from_json((out / "tradeoff.json").read_bytes()) == document
    assert sorted(path.name for path in out.iterdir()) == ["eager", "share-1bit+eager", "tradeoff.json"]
    described = json.loads((out / "eager" / "artefact.json").read_text())
    assert described["labels"] == list("abcde")
    assert document.row("eager").reload.max_difference <= document.row("eager").reload.tolerance
    inputs = data().inputs
    np.testing.assert_allclose(load_artefact(out / "eager")(inputs), Tiny().eval()(inputs).detach(), atol=1e-6)


@pytest.mark.parametrize(
    ("module", "settings", "said"),
    [
        (Tiny(), {"inputs": torch.randn(2, 3, 8, 8)}, r"does not take inputs of shape \(n, 3, 8, 8\)"),
        (Tiny(), {}, "no inputs"),
        (InPlace(), {"inputs": torch.randn(2, 1, 8, 8)}, "changes its inputs in place"),
        (Random(), {"inputs": torch.randn(2, 1, 8, 8)}, "returns other outputs for the same inputs, in eval mode"),
        (torch.nn.Embedding(9, 5), {"inputs": torch.ones(2, 3)}, "wrap a model with .* token IDs"),
        (torch.nn.Bilinear(3, 3, 5), {"inputs": torch.ones(2, 3)}, "wrap a model with several inputs"),
        (Tiny(), {"inputs": torch.full((2, 1, 8, 8), float("nan"))}, "NaN or infinite"),
        (torch.nn.LSTM(8, 5), {"inputs": torch.randn(2, 3, 8)}, "returns a tuple, not one tensor"),
        (torch.nn.Flatten(0), {"inputs": torch.randn(2, 3)}, "Return one row per input"),
        (Tiny(), {"inputs": PICTURES, "options": MeasureOptions(batch_sizes=(0,))}, "batch sizes: got 0"),
        (Tiny(), {"inputs": PICTURES, "options": MeasureOptions(threads=(1, 1))}, "threads: got 1, 1"),
        (Tiny(), {"inputs": PICTURES, "options": MeasureOptions(device="abacus")}, "PyTorch knows no such device"),
        (Tiny(), {"inputs": PICTURES, "options": MeasureOptions(max_accuracy_drop_points=1.0)}, "no validation data"),
        (Tiny(), {"validation": Validation(torch.randn(2, 1, 8, 8), torch.tensor([0, 7]))}, "dataset belong together"),
    ],
)  # fmt: skip
def test_what_cannot_be_studied_is_said_before_anything_is_built(module, settings, said):
    with pytest.raises(InferenceError, match=said):
        measure_variants(module, **settings)


@pytest.mark.parametrize("kind", ["file", "other folder"])
def test_a_folder_that_takes_no_artefact_is_said_before_anything_is_built(kind, tmp_path):
    out, said = tmp_path / "out", "cannot be created"
    if kind == "file":
        out.touch()
    else:
        (out / "eager").mkdir(parents=True)
        said = "eager exists and is not an exported variant"
    with pytest.raises(InferenceError, match=rf"{said}.* Give another --out"):
        measure_variants(Tiny(), inputs=data().inputs, options=MeasureOptions(variants=["eager"], out=out))


def test_a_document_that_cannot_be_written_is_not_lost(tmp_path):
    document = tradeoff([row("eager")])
    assert save_document(document, tmp_path) is document
    assert Tradeoff.from_json((tmp_path / "tradeoff.json").read_bytes()) == document
    kept = save_document(document, tmp_path / "gone")
    assert kept.rows == document.rows
    assert "tradeoff.json could not be written (No such file or directory)" in kept.notes[-1]


@pytest.mark.parametrize(
    ("inputs", "labels", "units", "said"),
    [
        (torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64), None, "validation data are empty"),
        (torch.zeros(2, 1), torch.zeros(3, dtype=torch.int64), None, "for 2 inputs"),
        (torch.zeros(2, 1), torch.zeros(2), None, "class indices"),
        (torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64), 3, "units must be from 1 to 2 \\(inputs\\), got 3"),
    ],
)
def test_validation_data_that_do_not_fit_are_refused(inputs, labels, units, said):
    with pytest.raises(InferenceError, match=said):
        Validation(inputs, labels, units)
