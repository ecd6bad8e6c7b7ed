from __future__ import annotations

import pytest
from torch import nn

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.transforms.registry import find_transform
from tests.inference.transforms.support import Trainer, small_network, student, subject_of


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
    with pytest.raises(VariantError, match=r"outputs of shape \(2, 3\)"):
        find_transform("alone-bad", {"bad": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3))}).apply(
            module, subject, trainer
        )
    assert not trainer.calls
