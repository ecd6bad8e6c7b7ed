"""Names of variants, artefacts on disk, how far a process may be from the one that built it, and sizes of weights."""

import gzip
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.runtimes.registry import find_runtime
from lightning_perf.inference.variants.artefact import (
    ARTEFACT_FILE,
    checked_call,
    load_artefact,
    read_artefact,
    save_artefact,
)
from lightning_perf.inference.variants.running import Origin, compare_reload, relative_difference
from lightning_perf.inference.variants.variant import default_variants, measure_storage, parse_variant, parse_variants
from tests.inference.support import Tiny, subject_of


def test_a_chain_and_a_runtime():
    variant = parse_variant("prune-50 + share-4bit+onnxruntime-int8")
    assert variant.name == "prune-50+share-4bit+onnxruntime-int8"
    assert [transform.name for transform in variant.transforms] == ["prune-50", "share-4bit"]
    assert variant.runtime.name == "onnxruntime-int8"


def test_the_original_is_first_and_nothing_twice():
    names = [variant.name for variant in parse_variants(["onnxruntime", "prune-50", "eager", "prune-50+eager"])]
    assert names == ["eager", "onnxruntime", "prune-50+eager"]
    for device in ("cpu", "cuda"):
        assert len(parse_variants(default_variants(device))) == len(default_variants(device))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("onxruntime", ["onnxruntime", "prune-25"]),
        ("prun-50+eager", ["prun-50", "prune-25"]),
        ("eager+onnxruntime", ["eager is a runtime", "as the last part"]),
        ("prune-50++eager", ["a part is empty"]),
        ("", ["a part is empty"]),
        ("prune-99+eager", ["from 1 to 95"]),
    ],
)
def test_wrong_names_are_told_with_what_there_is(text, said):
    with pytest.raises(InferenceError) as error:
        parse_variant(text)
    assert all(part in str(error.value) for part in said), error.value


@pytest.fixture
def folder(tmp_path):
    subject = subject_of(Tiny().eval(), torch.randn(4, 1, 8, 8))
    provenance = find_runtime("eager").build(subject, tmp_path)
    origin = Origin(variant="eager", runtime="eager", transforms=(), source="Tiny", labels=tuple("abcde"))
    save_artefact(tmp_path, subject, origin, output_shape=(5,), provenance=provenance)
    return tmp_path


def test_an_artefact_says_what_it_is_and_runs(folder):
    artefact = read_artefact(folder)
    assert (artefact.input_shape, artefact.output_shape, artefact.labels) == ((1, 8, 8), (5,), tuple("abcde"))
    assert artefact.size_bytes == (folder / "module.pt").stat().st_size
    assert artefact.versions["torch"] == torch.__version__.partition("+")[0]
    inputs = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(load_artefact(folder)(inputs), Tiny().eval()(inputs))


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (torch.zeros(2, 3, 8, 8), r"the variant takes \(n, 1, 8, 8\)"),
        (torch.tensor(1.0), r"the variant takes \(n, 1, 8, 8\)"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.uint8), r"are torch\.uint8, but the variant takes torch\.float32"),
    ],
)
def test_wrong_inputs_are_refused(folder, inputs, said):
    with pytest.raises(InferenceError, match=said):
        load_artefact(folder)(inputs)


def test_too_few_rows_are_not_passed_on():
    static = checked_call(lambda inputs: inputs[:1].sum((2, 3)), (5, 1, 1), (5,))
    assert static(torch.ones(1, 5, 1, 1)).shape == (1, 5)
    with pytest.raises(InferenceError, match=r"For a batch of 2, the variant returned \(1, 5\)"):
        static(torch.ones(2, 5, 1, 1))


def test_damage_is_told(folder, tmp_path):
    with pytest.raises(InferenceError, match="is not an exported variant"):
        read_artefact(tmp_path / "nothing")
    (folder / "module.pt").write_bytes(b"short")
    with pytest.raises(InferenceError, match=r"module\.pt has 5 bytes instead of"):
        load_artefact(folder)
    (folder / "module.pt").unlink()
    with pytest.raises(InferenceError, match=r"module\.pt is missing"):
        load_artefact(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format_version": 2}, "Upgrade lightning-perf"),
        ({"format_version": 0}, "Export it again"),
        ({"input_shape": "wide"}, "damaged"),
        ({"runtime": "abacus"}, "abacus"),
        ({"device": "cuda"}, "was built for cuda and cannot run on cpu"),
    ],
)
def test_a_description_of_no_use_is_told(folder, changes, said):
    path = folder / ARTEFACT_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InferenceError, match=said):
        load_artefact(folder)


BUILT = np.array([[1.0, -2.0]], np.float32)


@pytest.mark.parametrize(
    ("device", "runtime", "off_by", "allowed"),
    [
        ("cpu", "onnxruntime", 5e-4, True),
        ("cpu", "onnxruntime", 5e-3, False),
        ("cpu", "onnxruntime", float("nan"), False),
        ("cpu", "onnxruntime-int8", 5e-3, True),
        # A GPU's kernels compute float32 in TF32 or not, and a fresh process may choose others.
        ("cuda", "onnxruntime", 5e-3, True),
        ("cuda", "onnxruntime", 5e-2, False),
    ],
)
def test_the_tolerance_follows_the_arithmetic(device, runtime, off_by, allowed):
    artefact = SimpleNamespace(device=device, runtime=runtime)
    if allowed:
        assert compare_reload(BUILT * (1 + off_by), BUILT, artefact).max_difference == pytest.approx(off_by, rel=1e-3)
    else:
        with pytest.raises(VariantError, match="in a fresh process its outputs differ"):
            compare_reload(BUILT * np.float32(1 + off_by), BUILT, artefact)


def test_the_difference_is_relative_to_the_largest_output():
    assert relative_difference(BUILT + 0.5, BUILT) == 0.25
    assert relative_difference(BUILT[:, :1], BUILT) == float("inf")
    assert relative_difference(0 * BUILT, 0 * BUILT) == 0
    assert relative_difference(BUILT, 0 * BUILT) == float("inf")


def test_gzip_size_is_that_of_gzip_and_each_tensor_counts_once_whatever_its_type():
    module = nn.Linear(64, 64)
    data = b"".join(tensor.numpy(force=True).tobytes() for tensor in module.state_dict().values())
    assert measure_storage(module).dense_bytes == len(data)
    assert measure_storage(module).gzip_bytes == pytest.approx(len(gzip.compress(data, 6)), abs=20)
    several = nn.ModuleList([nn.Linear(4, 4, bias=False).bfloat16(), nn.BatchNorm1d(3)])
    several.append(several[0])
    several.register_buffer("empty", torch.zeros(0, 3))
    several.register_buffer("scalar", torch.tensor(True))
    assert measure_storage(several).dense_bytes == 2 * 16 + 4 * 4 * 3 + 8 + 1
