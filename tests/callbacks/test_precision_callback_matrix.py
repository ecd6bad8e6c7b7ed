"""Every combination is trained as Lightning trains it, or refused with a message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightning_perf.callbacks.precision_callback import PrecisionCallback
from tests.callbacks.precision_training import MODES, Recipe, fit, make_net
from tests.support.processes import fork_ranks

CLIPPED = {"gradient_clip_val": 0.1}

ONLY_AUTOMATIC = "Automatic gradient (clipping|accumulation) is not supported for manual optimization"


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        (Recipe(optimizers=2), {}, "multiple optimizers is only supported with manual optimization"),
        (Recipe(manual=True), {"accumulate_grad_batches": 2}, ONLY_AUTOMATIC),
        (Recipe(manual=True), CLIPPED, ONLY_AUTOMATIC),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_what_lightning_refuses_is_refused(tmp_path, fp16_on_cpu, mode, recipe, options, message) -> None:
    with pytest.raises(Exception, match=message):
        fit(tmp_path, PrecisionCallback(mode), make_net(recipe), **options)


@pytest.mark.slow
def test_combinations_on_two_processes(tmp_path):
    """One start for all: each rank trains every combination through the callback and by Lightning's own plugin."""
    done = fork_ranks(str(Path(__file__).with_name("precision_ddp_script.py")), str(tmp_path), timeout_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for rank in (0, 1) for line in (tmp_path / f"rank{rank}.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 2 * 7
    for row in rows:
        assert row["same"], row
        assert row["weights_agree"], row
        if row["mode"] == "16-mixed":
            assert row["skipped"] == 1, row
            assert row["sampled"] == (row["rank"] == 0), row
