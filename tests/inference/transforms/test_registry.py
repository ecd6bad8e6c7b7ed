from __future__ import annotations

from importlib.util import find_spec

import pytest
from torch import nn

from lightning_perf.inference.errors import InferenceError, VariantError
from lightning_perf.inference.transforms.registry import TRANSFORM_NAMES, find_transform
from tests.inference.transforms.support import Trainer, small_network, student, subject_of


@pytest.mark.parametrize("name", [*TRANSFORM_NAMES, "prune-1", "prune-95", "sparsify-99", "share-8bit"])
def test_names_find_what_they_name(name: str):
    transform = find_transform(name)
    assert transform.name == name
    assert transform.summary
    needed = "torch_pruning" if name.startswith("prune-") else "torch"
    assert (transform.missing() is None) == (find_spec(needed) is not None)


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


def test_a_student_is_trained_without_a_teacher():
    module = small_network()
    subject = subject_of(module)
    trainer = Trainer(subject, steps=1)
    made = find_transform("alone-tiny", {"tiny": student}).apply(module, subject, trainer)
    ((trained, teacher),) = trainer.calls
    assert made is trained
    assert teacher is None
    assert len(list(made.children())) == 2


def test_without_training_data_or_with_another_shape_it_is_a_reason():
    module = small_network()
    subject = subject_of(module)
    with pytest.raises(VariantError, match="alone-tiny needs training data"):
        find_transform("alone-tiny", {"tiny": student}).apply(module, subject, None)
    trainer = Trainer(subject)
    with pytest.raises(VariantError, match=r"outputs have shape \(2, 3\)"):
        find_transform("alone-bad", {"bad": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3))}).apply(
            module, subject, trainer
        )
    assert not trainer.calls
