import pytest

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.variants.variant import default_variants, parse_variant, parse_variants


def test_a_chain_and_a_runtime():
    variant = parse_variant("prune-50 + share-4bit+onnxruntime-int8")
    assert variant.name == "prune-50+share-4bit+onnxruntime-int8"
    assert [transform.name for transform in variant.transforms] == ["prune-50", "share-4bit"]
    assert variant.runtime.name == "onnxruntime-int8"


def test_the_original_is_first_and_nothing_twice():
    names = [variant.name for variant in parse_variants(["onnxruntime", "prune-50", "eager", "prune-50+eager"])]
    assert names == ["eager", "onnxruntime", "prune-50+eager"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_defaults_are_there(device):
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
