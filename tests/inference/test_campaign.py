from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from lightning_perf.inference.campaign import Campaign, MeasureOptions
from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.measurement.measure import Effort, Timed
from lightning_perf.inference.results.tradeoff import ColdStart, Reload
from lightning_perf.inference.variants.variant import parse_variants

OPTIONS = MeasureOptions(name="Tiny", effort=Effort(rounds=6))
ORIGINAL = np.array([[1.0, -2.0]], np.float32)


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


@pytest.fixture
def start(monkeypatch, tmp_path):
    """A campaign of variants whose outputs are off by so much, with artefacts and processes of this file."""

    def make(*names, provenance=None, off_by=0.0):
        def build(origin, *_, **__):
            outputs = tmp_path / f"{origin.variant}.npy"
            np.save(outputs, ORIGINAL if origin.variant == "eager" else ORIGINAL * (1 + off_by))
            artefact = SimpleNamespace(size_bytes=4, provenance=provenance)
            return SimpleNamespace(
                name=origin.variant, folder=tmp_path, artefact=artefact, outputs=outputs, seconds=1.0
            )

        monkeypatch.setattr("lightning_perf.inference.campaign.build_variant", build)
        monkeypatch.setattr("lightning_perf.inference.campaign.Running", Process)
        chains = SimpleNamespace(subject_file=lambda *_: None, module=lambda _: nn.Linear(1, 1))
        subject = SimpleNamespace(device=torch.device("cpu"))
        variants = parse_variants(names)
        return Campaign(variants, subject, ORIGINAL, chains, [], OPTIONS, tmp_path, lambda _: None)

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
