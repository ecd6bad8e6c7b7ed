"""The runner behind `benchmarks/gpu.sh`: results survive failures and time limits."""

import json
import time
from pathlib import Path

import pytest

from benchmarks import gpu_precision
from benchmarks.gpu import ON_GPU, STAGE_S, STAGES, TINY, Step, main, run_stage
from benchmarks.gpu_precision import Row

WRITES = "import pathlib; pathlib.Path(r'{work}/page.md').write_text('# A table'); print('shown')"


def python(name: str, code: str, limit_s: float = 60.0, **more: object) -> Step:
    return Step(name, ["-c", code], limit_s, **more)  # type: ignore[arg-type]


def test_each_step_leaves_its_page_raw_figures_and_output(tmp_path: Path) -> None:
    figures = "import pathlib; pathlib.Path(r'{work}/raw.jsonl').write_text('{{\"a\": 1}}\\n{{\"a\": 2}}\\n')"
    steps = [
        python("first", WRITES, pages=["page.md"]),
        python("second", figures, raw=["raw.jsonl"], output_is_page=True),
        python("third", "import pathlib; pathlib.Path(r'{work}/plot.png').write_bytes(b'x')", kept=["plot.png"]),
    ]
    page, failed = run_stage("trial", steps, tmp_path, stage_s=60)
    assert failed == []
    assert page == (tmp_path / "trial.md").read_text()
    assert "# A table" in page
    assert [json.loads(line) for line in (tmp_path / "trial.jsonl").read_text().splitlines()] == [
        {"step": "second", "a": 1},
        {"step": "second", "a": 2},
    ]
    assert "shown" in (tmp_path / "trial.log").read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["plot.png", "trial.jsonl", "trial.log", "trial.md"]


def test_a_step_that_fails_or_hangs_is_named_and_does_not_stop_the_next(tmp_path: Path) -> None:
    steps = [
        python("breaks", "raise SystemExit('no such device')"),
        python("hangs", "import pathlib, time; pathlib.Path(r'{work}/page.md').write_text('half a table'); "
               "print('begun', flush=True); time.sleep(60)", 6.0, pages=["page.md"]),
        python("works", "print('after all')", output_is_page=True),
    ]  # fmt: skip
    page, failed = run_stage("trial", steps, tmp_path, stage_s=60)
    assert [line.partition(" after")[0] for line in failed] == ["breaks: exit code 1", "hangs: timed out"]
    assert "no such device" in page
    assert "half a table" in page
    assert "after all" in page


def test_a_stage_ends_in_time(tmp_path: Path) -> None:
    began = time.monotonic()
    steps = [python("long", "import time; time.sleep(100)", 100.0), python("late", "print('never')")]
    _, failed = run_stage("trial", steps, tmp_path, stage_s=6)
    assert failed[0].startswith("long: timed out")
    assert failed[1].startswith("late: timed out after 0 s")
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_fits_its_time_and_few_files(stage: str) -> None:
    steps = STAGES[stage](ON_GPU)
    assert len({step.name for step in steps}) == len(steps)
    assert sum(step.limit_s for step in steps) <= STAGE_S
    assert 3 + sum(len(step.kept) for step in steps) <= 8
    assert [step.name for step in STAGES[stage](TINY)] == [step.name for step in steps]


def test_a_combination_that_fails_leaves_the_others_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(size: object, device: object, model: str, batch: int, arm: str, **options: bool) -> Row:
        if arm == "bf16":
            raise RuntimeError("no bfloat16 here\nand a trace")
        return Row(model, batch, options["channels_last"], arm, "as planned", 100.0)

    monkeypatch.setattr(gpu_precision, "measure", measure)
    monkeypatch.setattr(gpu_precision, "be_quiet", lambda: None)
    assert gpu_precision.main(["--device", "cpu", "--tiny", "--out", str(tmp_path / "table")]) == 1
    rows = [json.loads(line) for line in (tmp_path / "table.jsonl").read_text().splitlines()][1:]
    assert [row["images_per_s"] for row in rows] == 2 * [100.0, 100.0, None, 100.0]
    assert (tmp_path / "table.md").read_text().count("RuntimeError: no bfloat16 here |") == 2


def test_without_a_gpu_it_says_how_to_try_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["first"]) == 2
    assert "--tiny" in capsys.readouterr().err
    assert main(["--list"]) == 0
    assert "headline" in capsys.readouterr().out
