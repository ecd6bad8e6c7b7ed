"""The page of a comparison whose candidate diverged or crashed, with a loss as its quality."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec

from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.documents import page_json
from tests.compare.support import write_arms


def with_loss(run: Any, loss: float | None) -> Any:
    epochs = tuple(msgspec.structs.replace(epoch, metrics={"val_loss": loss}) for epoch in run.epochs)
    return dataclasses.replace(run, epochs=epochs, other_cpu_share=0.4)


def test_a_diverged_candidate_is_shown_with_its_loss_and_the_busy_machine(tmp_path: Path, open_page: Any) -> None:
    arms = write_arms(tmp_path)
    arms["fp32"] = [with_loss(run, 0.3 + 0.001 * n) for n, run in enumerate(arms["fp32"])]
    arms["amp"] = [with_loss(run, 9.0 if n else None) for n, run in enumerate(arms["amp"])]
    comparison = compare_arms(arms)
    opened = open_page(page_json(comparison), kind="study")
    opened.draw_charts()
    shown = opened.page.inner_text("main")
    (candidate,) = comparison.candidates
    assert opened.texts(".verdict .outcome") == ["diverged"]
    assert candidate.verdict.headline in shown
    assert "faster" not in candidate.verdict.headline  # though its steps take less time
    assert "Times alone: step time −" in candidate.verdict.headline
    assert all(line in shown for line in candidate.verdict.details)
    assert "The machine was busy: other processes took 40 % during fp32" in shown
