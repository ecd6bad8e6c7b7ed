"""Measurements of all variants: with processes once, else with stand-ins for those that build and run a variant."""

import json
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from lightning_perf.inference import Effort, MeasureOptions, Validation, load_artefact, measure_variants, run
from lightning_perf.inference.counting.document import Peaks
from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.measurement.measure import Timed
from lightning_perf.inference.results.tradeoff import ColdStart, Reload, Tradeoff
from lightning_perf.inference.run import Campaign, save_document
from lightning_perf.inference.variants.variant import parse_variants
from tests.inference.support import CPU, InPlace, Random, Tiny, row, tradeoff
from tests.support.processes import fork_workers

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
    with pytest.MonkeyPatch.context() as patch:
        fork_workers(patch)
        return measure_variants(Tiny(), validation=data(), options=options), out


@pytest.mark.slow
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


class Process:
    """A variant's process: 1 ms for bf16 and 10 ms for others. The fast one fails with a batch of 2."""

    cold = ColdStart(1.0, 1.0, None, None)

    def __init__(self, built, *_):
        self._milliseconds = 1 if built.name == "bf16" else 10

    def check_reload(self):
        return Reload(0.0, 1e-3)

    def time(self, order):
        if order.batch == 2 and self._milliseconds == 1:
            raise VariantError("its process crashed with SIGKILL")
        return Timed((self._milliseconds * 10**6,) * 20, (1,) * 20, ())

    def close(self):
        pass


ORIGINAL = np.array([[1.0, -2.0]], np.float32)


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Let variants have outputs that are off by so much from the original's, and processes of this file."""

    def use(original=ORIGINAL, provenance=None, off_by=0.0):
        def build(origin, *_, **__):
            outputs = tmp_path / f"{origin.variant}.npy"
            np.save(outputs, original if origin.variant == "eager" else original * (1 + off_by))
            artefact = SimpleNamespace(size_bytes=4, provenance=provenance)
            name = origin.variant
            return SimpleNamespace(name=name, folder=tmp_path, artefact=artefact, outputs=outputs, seconds=1.0)

        monkeypatch.setattr(run, "build_variant", build)
        monkeypatch.setattr(run, "Running", Process)

    return use


@pytest.fixture
def start(stand_in, tmp_path):
    def make(*names, **outputs):
        stand_in(**outputs)
        chains = SimpleNamespace(subject_file=lambda *_: None, module=lambda _: nn.Linear(1, 1))
        subject, options = SimpleNamespace(device=CPU), MeasureOptions(name="Tiny", effort=Effort(rounds=6))
        return Campaign(parse_variants(names), subject, ORIGINAL, chains, [], options, tmp_path, lambda _: None)

    return make


def test_a_variant_that_fails_later_is_best_in_nothing(start):
    campaign = start("bf16")
    campaign.run(1, [1, 2])
    assert [cell.front for cell in campaign.cells] == [("eager",), ("eager",)]
    eager, fast = campaign.rows
    assert (eager.reason, fast.reason) == (None, "its process crashed with SIGKILL")
    assert fast.latency(1, 1).p50_ms == 1  # what was measured stays


@pytest.mark.parametrize(
    ("name", "provenance", "error", "fails"),
    [
        ("onnxruntime", {"dtype": "float32"}, 0.5, True),
        ("onnxruntime", {"dtype": "float32"}, float("nan"), True),
        ("onnxruntime", {"dtype": "float32"}, 1e-3, False),
        ("bf16", {"dtype": "bfloat16"}, 0.5, False),  # for its accuracy to judge
        ("onnxruntime-int8", {"weights": "int8 per channel"}, 0.5, False),
    ],
)
def test_float32_has_to_give_the_outputs_of_the_original(name, provenance, error, fails, start):
    campaign = start(name, f"share-1bit+{name}", provenance=provenance, off_by=error)
    campaign.run(1, [1])
    _, plain, shared = campaign.rows
    assert ("outputs differ from the original" in (plain.reason or "")) == fails
    assert shared.reason is None  # a transform changes outputs


def test_nothing_can_be_said_without_the_original(start, monkeypatch):
    def fail(self):
        raise VariantError("gone")

    monkeypatch.setattr(Process, "check_reload", fail)
    with pytest.raises(InferenceError, match="The original itself cannot be measured: gone"):
        start("bf16").run(1, [1])


def test_a_bound_that_the_model_beats_is_measured_again_and_left_out(stand_in, monkeypatch):
    asked = []

    def busy(device, threads, dtype=torch.float32, *, working_set_bytes):
        asked.append(threads)
        return Peaks("A CPU", "float32", threads, 1.0, 1.0, "measured here: slowly")

    monkeypatch.setattr(run, "find_peaks", busy)
    stand_in(original=Tiny().eval()(PICTURES).detach().numpy(), provenance={"dtype": "float32"})
    options = MeasureOptions(variants=["eager"], batch_sizes=(1,), effort=QUICK)
    document = measure_variants(Tiny(), inputs=PICTURES, options=options)
    assert len(asked) == 3
    assert document.count is not None
    assert document.roofline is None
    assert any("left out: eager is faster than the rates" in note for note in document.notes)
