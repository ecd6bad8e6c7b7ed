from dataclasses import replace
from pathlib import Path

import pytest

from lightning_perf.inference import campaign as module
from lightning_perf.inference.campaign import Campaign, Place
from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.measurement.measure import Effort
from lightning_perf.inference.measurement.messages import Timed
from lightning_perf.inference.variants.variant import parse_variants
from tests.inference.support import row

EFFORT = Effort(rounds=6)


class Process:
    """A variant that takes so long, and fails with a batch of 2 when it is the fast one."""

    def __init__(self, milliseconds):
        self._milliseconds = milliseconds

    def time(self, order):
        if order.batch == 2 and self._milliseconds == 1:
            raise VariantError("its process crashed with SIGKILL")
        return Timed((self._milliseconds * 10**6,) * 20, (1,) * 20, ())


@pytest.fixture
def campaign(monkeypatch):
    def start(self, variant, threads, running, stack):
        self._rows[variant.name] = row(variant.name, latencies=())
        running[variant.name] = Process(1 if variant.name == "bf16" else 10)
        if variant.name == "eager":
            running[module.AGAIN] = Process(10)

    monkeypatch.setattr(Campaign, "_start", start)
    place = Place(Path("a"), False, Path("w"), "Tiny", (), 1.0)
    return Campaign(parse_variants(["bf16"]), None, None, None, None, place, EFFORT, lambda _: None)


def test_a_variant_that_fails_later_is_best_in_nothing(campaign):
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
def test_float32_has_to_give_the_outputs_of_the_original(name, provenance, error, fails):
    given = row(name, provenance=provenance, output_error=error)
    if fails:
        with pytest.raises(VariantError, match="computes something else than the original"):
            module._require_same_outputs(given)
    module._require_same_outputs(replace(given, transforms=("share-1bit",)))
    if not fails:
        module._require_same_outputs(given)


def test_nothing_can_be_said_without_the_original(campaign):
    with pytest.raises(InferenceError, match="the original itself cannot be measured: gone"):
        campaign._fail("eager", VariantError("gone"))
