"""Studies that run until they are precise, and studies with a time budget."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.comparing.verdict_noise import rank_interval
from lightning_perf.cli import main
from lightning_perf.commands.study import _half_width
from lightning_perf.compare.folders import compare_runs
from lightning_perf.compare.study.definition import Study, StudyArm, balanced_orders, read_study
from lightning_perf.compare.study.run import ADDED_BLOCKS, MAX_PRECISE_BLOCKS, MIN_PRECISE_BLOCKS, run_study
from lightning_perf.compare.verdicts.gates import Settings
from lightning_perf.errors import CompareError
from lightning_perf.run_files import journal
from lightning_perf.run_files.run_record import Place
from tests.compare.support import write_run

ARMS = (StudyArm("a", ("x",)), StudyArm("b", ("x",)))


def precise_study(**changes: Any) -> Study:
    return Study(**{"arms": ARMS, "precise": 0.01, "blocks": 12, "max_blocks": 40, "revision": None, **changes})


class FakeEngine:
    """Leaves the journals and the records of runs whose step times scatter, and lets a clock advance."""

    def __init__(self, spread: float, parallel: int = 1, block_s: float = 10.0) -> None:
        self.spread, self.parallel_blocks, self.block_s = spread, parallel, block_s
        self.now_s = 0.0
        self.calls: list[list[int]] = []

    def check(self) -> None:
        pass

    def run(self, folder: Path, blocks: Sequence[int], tick: Callable[[], None]) -> None:
        self.calls.append(list(blocks))
        study = read_study(folder)
        rng = np.random.default_rng(100 + blocks[0])
        for block in blocks:
            for position, arm in enumerate(study.order(block)):
                run = folder / "runs" / f"{block}-{arm}"
                journal.append(folder, block, journal.RunBegan(arm, 0, str(run), "cpu"))
                place = Place(study.study_id, arm, block, position)
                ms = 100 * math.exp(self.spread * rng.standard_normal())
                write_run(run, step_ms=ms, place=place, train__seed=block, started=10.0 * block + position)
                journal.append(folder, block, journal.RunOver(arm, 0, self.block_s / len(study.arms)))
            journal.append(folder, block, journal.BlockOver(True))
        self.now_s += self.block_s
        tick()


def run(study: Study | None, folder: Path, engine: FakeEngine, **options: Any) -> list[str]:
    lines: list[str] = []
    run_study(study, folder, engine, lines.append, half_width=lambda folder: _half_width(folder, Settings()), **options)
    return lines


def test_blocks_are_added_in_balanced_groups_until_the_interval_is_narrow(tmp_path: Path) -> None:
    engine = FakeEngine(spread=0.016)
    lines = run(precise_study(), tmp_path, engine)
    study = read_study(tmp_path)
    assert MIN_PRECISE_BLOCKS < study.blocks < MAX_PRECISE_BLOCKS
    assert engine.calls[:2] == [[0], list(range(1, 13))]
    assert engine.calls[2:] == [list(range(block, block + 4)) for block in range(13, study.blocks, 4)]
    width = _half_width(tmp_path, Settings())
    assert width is not None
    assert width <= 0.01
    assert compare_runs(tmp_path).candidate("b").metric("step_time").estimate.n == study.blocks
    added = [line for line in lines if line.endswith("(wanted: ±1 %). Adding 4 blocks.")]
    assert len(added) == (study.blocks - 12) // 4
    assert added[0].startswith("After 12 blocks the step time has ±")
    assert f"After {study.blocks} blocks the step time is precise enough: ±{100 * width:.3g} % (wanted: ±1 %)." in lines
    orders = [study.order(block) for block in range(1, study.blocks + 1)]
    assert orders.count(("a", "b")) == orders.count(("b", "a"))
    # Nothing more runs when the study is started again, with the same definition or with the folder alone.
    run(precise_study(study_id="other"), tmp_path, again := FakeEngine(spread=0.012))
    run(None, tmp_path, again)
    assert again.calls == []
    assert not any("Not finished" in note for note in compare_runs(tmp_path).notes)


def test_a_precise_study_has_a_minimum_and_a_maximum(tmp_path: Path) -> None:
    run(precise_study(), tmp_path / "quiet", quiet := FakeEngine(spread=1e-4))
    assert quiet.calls == [[0], list(range(1, 13))]
    lines = run(precise_study(max_blocks=17), tmp_path / "noisy", noisy := FakeEngine(spread=0.3))
    assert noisy.calls == [[0], list(range(1, 13)), [13, 14, 15, 16], [17]]
    assert any("After 17 blocks, the maximum, the step time has ±" in line for line in lines)


def test_groups_fill_the_devices(tmp_path: Path) -> None:
    run(precise_study(max_blocks=18), tmp_path, engine := FakeEngine(spread=0.3, parallel=5))
    assert engine.calls[2:] == [[13, 14, 15, 16, 17, 18]]


def test_another_precision_is_another_study(tmp_path: Path) -> None:
    run(precise_study(max_blocks=12), tmp_path, FakeEngine(spread=0.01))
    for changed in ({"precise": 0.02}, {"max_blocks": 20}):
        with pytest.raises(CompareError, match=f"holds a different study .*{next(iter(changed))}: "):
            run(precise_study(**{"max_blocks": 12, **changed}), tmp_path, FakeEngine(spread=0.01))


@pytest.mark.parametrize("wrong", [{"precise": 0.0}, {"precise": None}, {"max_blocks": None}, {"max_blocks": 11}])
def test_wrong_definitions_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CompareError):
        precise_study(**wrong)


@pytest.mark.parametrize("arms", [2, 3, 4, 5])
def test_orders_of_fewer_blocks_begin_those_of_more(arms: int) -> None:
    names = [f"arm{n}" for n in range(arms)]
    longest = balanced_orders(names, 40, 3, extensible=True)
    for blocks in range(1, 40):
        assert balanced_orders(names, blocks, 3, extensible=True) == longest[:blocks]
    for group in range(0, 40 - arms, arms):
        for position in range(arms):
            assert {order[position] for order in longest[group : group + arms]} == set(names)


def stopped_level(arms: int, spread: float, rounds: int) -> tuple[float, float]:
    """Simulate precise studies without any difference, with the interval that `test_robust.py` holds against compare.

    `spread` is the SD of the log ratio of two runs, and the target is 0.01. Return the share of the studies that report
    a difference, and their mean number of blocks.
    """
    rng = np.random.default_rng(7)
    runs = spread / math.sqrt(2) * rng.standard_normal((arms, rounds, MAX_PRECISE_BLOCKS))
    confidence = 1 - 0.05 / (arms - 1)
    step = arms * -(-ADDED_BLOCKS // arms)
    live, found, total, blocks = np.arange(rounds), 0, 0, MIN_PRECISE_BLOCKS
    while len(live):
        going = []
        for chunk in np.array_split(live, max(1, len(live) // 1000)):
            ends = [rank_interval((arm - runs[0])[chunk, :blocks], 1 - confidence) for arm in runs[1:]]
            precise = np.all([(high - low) / 2 <= math.log(1.01) for low, high in ends], axis=0)
            differs = np.any([(low > 0) | (high < 0) for low, high in ends], axis=0)
            stops = precise | (blocks == MAX_PRECISE_BLOCKS)
            found += int((stops & differs).sum())
            total += blocks * int(stops.sum())
            going.append(chunk[~stops])
        live, blocks = np.concatenate(going), min(blocks + step, MAX_PRECISE_BLOCKS)
    return found / rounds, total / rounds


@pytest.mark.parametrize("arms", [2, 3])
@pytest.mark.parametrize("spread", [0.010, 0.025])
def test_stopping_when_precise_keeps_the_level(arms: int, spread: float) -> None:
    """Without a difference, 4 to 6.5 % of the studies report one, whether they need the minimum or the maximum."""
    level, blocks = stopped_level(arms, spread, 6_000)
    assert 0.04 <= level <= 0.065
    assert MIN_PRECISE_BLOCKS <= blocks <= MAX_PRECISE_BLOCKS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeEngine], FakeEngine]:
    def follow(engine: FakeEngine) -> FakeEngine:
        monkeypatch.setattr("lightning_perf.compare.study.run.time.monotonic", lambda: engine.now_s)
        return engine

    return follow


def test_a_time_budget_starts_no_block_that_would_end_later(
    tmp_path: Path, clock: Callable[[FakeEngine], FakeEngine]
) -> None:
    study = Study(arms=ARMS, blocks=6, revision=None)
    engine = clock(FakeEngine(0.01, block_s=10.0))
    lines = run(study, tmp_path, engine, budget_s=45.0)  # the warm-up and three blocks take 40 seconds
    assert engine.calls == [[0], [1], [2], [3]]
    assert lines[-1] == (
        "The time budget of 45.0 s allows no further block: 3 of 6 are finished. Run the study again with the same "
        "folder for the rest."
    )
    assert any("Not finished: blocks 4, 5, 6" in note for note in compare_runs(tmp_path).notes)
    engine = clock(FakeEngine(0.01))
    assert not any("time budget" in line for line in run(None, tmp_path, engine))
    assert engine.calls == [[4, 5, 6]]


def test_a_time_budget_gives_each_device_a_block_and_also_limits_a_precise_study(
    tmp_path: Path, clock: Callable[[FakeEngine], FakeEngine]
) -> None:
    engine = clock(FakeEngine(0.3, parallel=2, block_s=10.0))
    lines = run(precise_study(), tmp_path, engine, budget_s=95.0)
    assert engine.calls == [[0], *([n, n + 1] for n in range(1, 16, 2))]
    assert "16 of up to 40 are finished" in lines[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--precise=0.01", "--blocks=8"], "--blocks 8: --precise needs at least 12. Give a larger maximum"),
        (["--minutes=5", "--engine=ray"], "--minutes: works only with --engine local, not ray."),
    ],
)
def test_wrong_options_are_refused_before_any_run(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", str(tmp_path / "study"), "--arm=a=true", "--arm=b=true", *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "study" / "blocks").exists()


def test_precision_without_arms_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", str(tmp_path), "--precise=0.01"]) == 2
    assert "--precise: defines a new study" in capsys.readouterr().err
