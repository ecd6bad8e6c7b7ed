"""Each planted mistake is named, with its place, and nothing else. With the fix applied, the training is clean."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_perf.run_files.numerics.precision import PrecisionMistake
from tests.callbacks.precision_gallery.planted import PLANTED, Planted
from tests.callbacks.precision_training import batches
from tests.callbacks.training import hooked, make_trainer

pytestmark = pytest.mark.usefixtures("fp16_on_cpu")


def train(tmp_path: Path, planted: Planted, *, fixed: bool) -> tuple[Any, tuple[PrecisionMistake, ...], list[str]]:
    """Train and return the module, the mistakes, and the texts of the warnings about them."""
    module = planted.make(fixed=fixed)
    callback = planted.callback(fixed=fixed)
    trainer = make_trainer(tmp_path, callback, **planted.trainer_options(fixed=fixed))
    if planted.checkpoint:  # in the third step
        save = lambda *args: args[-1] == 2 and trainer.save_checkpoint(tmp_path / "early.ckpt")  # noqa: E731
        trainer.callbacks.append(hooked(on_train_batch_end=save))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if planted.raises is not None and not fixed:
            with pytest.raises(planted.raises):
                trainer.fit(module, batches())
        else:
            trainer.fit(module, batches())
    texts = [str(one.message) for one in caught if "lightning-perf explain" in str(one.message)]
    return module, callback.mistakes, texts


@pytest.mark.parametrize("planted", PLANTED, ids=[one.name for one in PLANTED])
def test_a_planted_mistake_is_named_with_its_place(tmp_path, planted):
    _, mistakes, texts = train(tmp_path, planted, fixed=False)
    assert {one.kind for one in mistakes} == {planted.kind}
    first = mistakes[0]
    assert first.layer == planted.layer
    assert ("planted.py:" in first.line) == planted.line
    if planted.line:
        number = int(first.line.rpartition(":")[2])
        lines = Path(__file__).with_name("planted.py").read_text(encoding="utf-8").splitlines()
        assert lines[number - 1].strip()
        assert lines[number - 1].startswith("        ")
    assert first.action.endswith(".")
    assert len(texts) == 1
    assert first.title in texts[0]
    assert f"lightning-perf explain {planted.kind}" in texts[0]


@pytest.mark.parametrize("planted", PLANTED, ids=[one.name for one in PLANTED])
def test_its_fix_cures_it(tmp_path, planted):
    module, mistakes, texts = train(tmp_path, planted, fixed=True)
    assert mistakes == ()
    assert texts == []
    assert math.isfinite(module.losses[-1])
    start = planted.make(fixed=True)
    moved = [
        not torch.equal(p.float(), q.float()) for p, q in zip(module.parameters(), start.parameters(), strict=True)
    ]
    assert any(moved)
    assert all(bool(torch.isfinite(p).all()) for p in module.parameters())
