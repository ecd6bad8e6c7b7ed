"""A fit of a language model: its tokens, padding and FLOPs in the report, against counts of its own batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import lightning_perf
from lightning_perf import PerfCallback
from lightning_perf.run_files.fit.account import account_paths, read_account
from lightning_perf.run_files.steps import STEPS
from recipes.tinylm.data import IGNORED, Batch, TextData
from recipes.tinylm.module import LanguageModule
from recipes.tinylm.settings import Packing, TrainSettings
from recipes.tinylm.train import build_training
from tests.callbacks.training import make_trainer

SETTINGS = TrainSettings(layers=2, heads=2, width=32, context=40, documents=40, batch_size=6, packing=Packing.BUCKET)
RECORDED = (2, 3, 4)


def batches_of(data: TextData) -> list[Batch]:
    return list(data.train_dataloader())


def counted_flops(module: LanguageModule, batch: Batch) -> int:
    module.log = lambda *_, **__: None  # type: ignore[method-assign]  # there is no Trainer
    with FlopCounterMode(display=False) as counter:
        module.training_step(batch, 0).backward()
    return counter.get_total_flops()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    torch.manual_seed(0)
    module, data = build_training(SETTINGS)
    callback = PerfCallback(skip_first=1, warmup=1, active=len(RECORDED), report="none", dirpath=folder / "perf")
    trainer = make_trainer(folder, callback, max_epochs=1)
    trainer.fit(module, data.train_dataloader())
    return folder / "perf"


def test_tokens_and_padding_are_those_of_the_batches(folder: Path) -> None:
    batches = batches_of(build_training(SETTINGS)[1])  # the same seed, so the same order
    tokens = [batch["labels"].numel() for batch in batches]
    assert STEPS.read(STEPS.path(folder, 0)).tokens.tolist() == tokens
    assert read_account(account_paths(folder)[0]).tokens == sum(tokens)
    report = lightning_perf.analyze(folder)
    model = report.ranks[0].language_model
    assert model is not None
    assert model.tokens_per_step == pytest.approx(sum(tokens[step] for step in RECORDED) / len(RECORDED))
    seen = [batches[step]["labels"] for step in (1, *RECORDED)]  # the warm-up, too
    padding = sum(int((labels == IGNORED).sum()) for labels in seen)
    assert padding
    assert model.padding == pytest.approx(padding / sum(labels.numel() for labels in seen))
    assert model.beyond_longest == 0
    assert report.fit_time is not None
    assert report.fit_time.tokens_per_second == pytest.approx(sum(tokens) / report.fit_time.wall_ns * 1e9)


def test_flops_per_token_are_those_of_torchs_counter(folder: Path) -> None:
    module, data = build_training(SETTINGS)
    batches = batches_of(data)
    model = lightning_perf.analyze(folder).ranks[0].language_model
    assert model is not None
    assert model.flops_per_token is not None
    assert model.formula_flops_per_token is not None
    counted = sum(counted_flops(module, batches[step]) for step in RECORDED)
    # Torch's counter takes no notice of a causal mask, which halves the two products of the forward and the five of the
    # backward: 7 × 2 of T × width for each token.
    masked = sum(
        SETTINGS.layers * 7 * SETTINGS.width * batches[step]["labels"].shape[1] * batches[step]["labels"].numel()
        for step in RECORDED
    )
    assert model.flops_per_token * model.tokens_per_step * len(RECORDED) == pytest.approx(counted - masked)
    assert model.parameters == sum(p.numel() for p in module.parameters()) - SETTINGS.context * SETTINGS.width
    per_layer = sum(
        12 * SETTINGS.width * batches[step]["labels"].shape[1] * batches[step]["labels"].numel() for step in RECORDED
    )
    attention = SETTINGS.layers * per_layer / (model.tokens_per_step * len(RECORDED))
    assert model.attention_flops_per_token == pytest.approx(attention)
    assert model.formula_flops_per_token == pytest.approx(6 * model.parameters + attention)


def test_the_report_names_the_figures(folder: Path) -> None:
    text = lightning_perf.analyze(folder).to_markdown()
    assert "### Language model" in text
    assert "tokens per step" in text
    assert "the formula 6N + 12·L·d·T" in text
    assert "tokens/s over the whole fit" in text
