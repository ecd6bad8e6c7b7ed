from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lightning_perf.compare.errors import CompareError
from lightning_perf.compare.study.definition import Study, StudyArm
from lightning_perf.compare.verdicts.comparison import Comparison
from lightning_perf.run_files.run_record import Place
from lightning_perf.tensorboard.make_study import Unfair, make_study
from tests.compare.support import write_run


def write_study(folder: Path, blocks: int = 3, **changes: object) -> Path:
    """A finished study: the second arm is a fifth faster."""
    study = Study(
        arms=(StudyArm("fp32", ("x",)), StudyArm("amp", ("x",))), blocks=blocks, treatment=("precision",), study_id="s"
    )
    folder.mkdir(parents=True)
    (folder / "study.json").write_bytes(msgspec.json.encode(study))
    for block in range(blocks + 1):
        for position, (arm, step_ms, precision) in enumerate((("fp32", 10.0, "32-true"), ("amp", 8.0, "16-mixed"))):
            write_run(
                folder / "runs" / f"block{block:03}" / arm,
                step_ms=step_ms + 0.01 * block,
                started=10.0 * block + position,
                place=Place("s", arm, block, position, treatment=study.treatment),
                train__precision=precision,
                **(changes if arm == "amp" else {}),
            )
    return folder


def test_compares_the_arms_with_the_study_s_treatment(tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="needs scipy: pip install scipy")
    comparison = make_study(write_study(tmp_path / "study"))
    assert isinstance(comparison, Comparison)
    assert (comparison.baseline, comparison.blocked, comparison.treatment) == ("fp32", True, ("precision",))
    ratio = next(result for result in comparison.candidates[0].metrics if result.metric == "step_time").estimate.value
    assert ratio == pytest.approx(0.8, abs=0.01)
    assert comparison.notes[-1].startswith("Not finished")  # there is no journal that tells of an end


def test_an_unfair_comparison_tells_the_differing_facts(tmp_path: Path) -> None:
    study = make_study(write_study(tmp_path / "study", train__batch_size=64))
    assert isinstance(study, Unfair)
    assert study.state == "unfair"
    assert (study.baseline, "train.batch_size" in study.message) == ("fp32", True)
    (row,) = study.rows
    assert (row.arm, row.fact, row.baseline, row.candidate) == ("amp", "train.batch_size", ("32",), ("64",))


def test_a_study_without_runs_is_an_error(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study")
    for run in (folder / "runs").rglob("run.jsonl"):
        run.unlink()
    with pytest.raises(CompareError, match="holds no run record"):
        make_study(folder)
