"""What was declared holds: gates of a study in `compare STUDY`, checked types, JSON of refusals."""

import json

import pytest

from lightning_perf.cli import main
from lightning_perf.compare.folders import compare_runs
from lightning_perf.compare.study.definition import Study, StudyArm
from lightning_perf.compare.study_options import settle_options
from lightning_perf.compare.verdicts.gates import Settings, parse_gate
from lightning_perf.run_files.atomic import write_document
from lightning_perf.run_files.journal import STUDY_NAME
from tests.compare.support import write_arms


@pytest.fixture
def study(tmp_path):
    """A finished study that declared a gate, which its candidate breaks."""
    settings = Settings(gates=(parse_gate("step_time<=0.5"),), margin=0.02, treatment=("precision",))
    arms = (StudyArm("fp32", ("x",)), StudyArm("amp", ("x",)))
    settle_options(tmp_path, None, settings)
    write_document(tmp_path / STUDY_NAME, Study(arms=arms, blocks=6, treatment=("precision",), study_id="s"))
    write_arms(tmp_path, train__precision="16-mixed")
    return tmp_path


def test_comparing_a_study_keeps_its_gates_and_margin(study, capsys):
    comparison = compare_runs(study)
    assert [gate.gate for gate in comparison.gates] == ["step_time<=0.5"]
    assert comparison.candidates[0].accuracy.margin == 0.02
    assert main(["compare", str(study)]) == 1
    assert "step_time<=0.5" in capsys.readouterr().out


def test_what_you_declare_yourself_goes_first(study, capsys):
    assert (
        main(["compare", str(study), "--gate=step_time<=1.05", "--confidence=0.9", "--equivalence=0.2", "--json"]) == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert [gate["gate"] for gate in document["gates"]] == ["step_time<=1.05"]
    assert (document["confidence"], document["equivalence"]) == (0.9, 0.2)
    assert document["candidates"][0]["accuracy"]["margin"] == 0.02
    assert document["candidates"][0]["verdict"]["kind"] == "equivalent"
