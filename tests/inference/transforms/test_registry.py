from __future__ import annotations

import sys

import pytest
from torch import nn

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.transforms.registry import TRANSFORM_NAMES, find_transform


@pytest.mark.parametrize("name", [*TRANSFORM_NAMES, "prune-1", "prune-95", "sparsify-99", "share-8bit"])
def test_names_find_what_they_name(name: str):
    transform = find_transform(name)
    assert transform.name == name
    assert transform.summary


def test_a_missing_package_is_named(monkeypatch):
    assert find_transform("share-4bit").missing() is None
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    assert "torch_pruning is not installed" in (find_transform("prune-50").missing() or "")


def test_students_are_the_callers():
    transform = find_transform("distil-cnn", {"cnn": lambda: nn.Linear(1, 1)})
    assert transform.name == "distil-cnn"
    with pytest.raises(InferenceError, match="Unknown transform 'distil-cnn'"):
        find_transform("distil-cnn")
    with pytest.raises(InferenceError, match="distil, distil-cnn"):
        find_transform("distil-vit", {"cnn": lambda: nn.Linear(1, 1)})


@pytest.mark.parametrize("name", ["prune-0", "prune-96", "sparsify-100", "share-0bit", "share-9bit"])
def test_numbers_out_of_range_are_errors(name: str):
    with pytest.raises(InferenceError, match="must be from 1 to"):
        find_transform(name)


@pytest.mark.parametrize("name", ["prune", "prune-x", "share-4", "", "eager", "distil-", "Prune-50"])
def test_unknown_names_list_what_there_is(name: str):
    with pytest.raises(InferenceError, match="prune-25, prune-50"):
        find_transform(name)
