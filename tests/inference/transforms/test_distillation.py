from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.transforms.distillation import Distil
from lightning_perf.inference.transforms.registry import find_transform
from tests.inference.transforms.support import Trainer, small_network, student, subject_of


@pytest.mark.parametrize("name", ["distil-tiny", "alone-tiny"])
def test_a_named_student_is_trained_with_or_without_the_original(name):
    module = small_network()
    subject = subject_of(module)
    trainer = Trainer(subject)
    made = find_transform(name, {"tiny": student}).apply(module, subject, trainer)
    ((trained, teacher),) = trainer.calls
    assert made is trained
    assert teacher is (module if name == "distil-tiny" else None)
    assert len(list(made.children())) == 2
    assert not made.training


def test_what_came_before_learns_from_the_original_and_is_left_as_it_is():
    module, changed = small_network(), student()
    subject = subject_of(module)
    trainer = Trainer(subject, steps=1)
    before = changed[1].weight.clone()
    made = Distil().apply(changed, subject, trainer)
    assert trainer.calls[0][1] is module
    assert torch.equal(changed[1].weight, before)
    assert not torch.equal(made[1].weight, before)


def test_bad_students_are_reasons():
    module = small_network()
    subject = subject_of(module)
    trainer = Trainer(subject)
    with pytest.raises(VariantError, match="distil needs a student"):
        Distil().apply(module, subject, trainer)
    for name in ("distil-tiny", "alone-tiny"):
        with pytest.raises(VariantError, match=f"{name} needs training data"):
            find_transform(name, {"tiny": student}).apply(module, subject, None)
    with pytest.raises(VariantError, match=r"outputs have shape \(2, 3\), not \(2, 10\)"):
        Distil("tiny", lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3))).apply(module, subject, trainer)
    with pytest.raises(VariantError, match="does not run"):
        Distil("tiny", lambda: nn.Linear(3, 10)).apply(module, subject, trainer)
    assert not trainer.calls
