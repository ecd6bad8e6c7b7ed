"""The accounts of a fit on several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_perf.run_files.fit.account import account_paths, read_account
from tests.callbacks.test_ddp import run
from tests.callbacks.training import PACKAGES, samples


@pytest.mark.slow
@pytest.mark.parametrize(("name", "strategy"), [(PACKAGES[0], "ddp_spawn"), (PACKAGES[1], "ddp")])
def test_every_rank_has_an_account_and_names_its_own_delay(tmp_path: Path, name: str, strategy: str) -> None:
    """Every batch of the last rank sleeps for 100 ms, and the other rank waits for it in backward."""
    done = run(name, strategy, str(tmp_path), "straggler", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "account" not in done.stderr
    (folder,) = {path.parent for path in tmp_path.rglob("account.rank0.jsonl")}
    first, last = map(read_account, account_paths(folder))
    assert (first.rank, last.rank) == (0, 1)
    assert first.end == last.end == "returned"
    assert first.batches == last.batches == len(samples(tmp_path, 0))
    delay_ns = last.batches * 100_000_000

    def phase_ns(account: object, phase: str) -> int:
        return sum(account.entry(group, phase).time_ns for group in ("first step", "training steps"))  # type: ignore[attr-defined]

    assert phase_ns(last, "forward") >= delay_ns
    assert phase_ns(first, "forward") < delay_ns
