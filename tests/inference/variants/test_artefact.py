import json

import pytest
import torch

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.model.subject import Subject
from lightning_perf.inference.runtimes.registry import find_runtime
from lightning_perf.inference.variants.artefact import (
    ARTEFACT_FILE,
    CheckedCall,
    load_artefact,
    read_artefact,
    save_artefact,
)
from lightning_perf.inference.variants.worker import Origin
from tests.inference.support import Tiny


@pytest.fixture
def folder(tmp_path):
    inputs = torch.randn(4, 1, 8, 8)
    subject = Subject(Tiny().eval(), inputs, inputs, torch.device("cpu"), 1)
    provenance = find_runtime("eager").build(subject, tmp_path)
    origin = Origin(variant="eager", runtime="eager", transforms=(), source="Tiny", labels=tuple("abcde"))
    save_artefact(tmp_path, subject, origin, output_shape=(5,), provenance=provenance)
    return tmp_path


def test_it_says_what_it_is_and_runs(folder):
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
    static = CheckedCall(lambda inputs: inputs[:1].sum((2, 3)), (5, 1, 1), (5,))
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
