from __future__ import annotations

from pathlib import Path

import pytest

from lightning_perf.cli import main
from lightning_perf.run_files.probe import PROBE_NAME, Probe, ProbedCall, ProbedChange, read_probe
from tests.support.schemas import load_document

MS = 1e6
PROBE = Probe(
    device="A CPU",
    rank=0,
    sources=("rank0.1.pt.trace.json",),
    step_ns=100 * MS,
    operator_ns=90 * MS,
    covered_ns=81 * MS,
    seconds=4.5,
    changes=(
        ProbedChange("channels-last", "channels last", -5 * MS, -6 * MS, -4 * MS, 0.0, 81 * MS, 5),
        ProbedChange("bf16", "bf16-mixed", 20 * MS, 18 * MS, 22 * MS, 0.0, 81 * MS, 5),
    ),
    calls=(ProbedCall("conv2d", "[[1]]", 2.0, 60 * MS, 30 * MS, {"bf16": 20 * MS}),),
    skipped={"my::op": "it is no operator of PyTorch"},
    same_device=False,
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run whose probe has the result above."""
    monkeypatch.setattr("lightning_perf.probe.folder.probe_path", lambda path, _, **__: (PROBE, path))
    return tmp_path


def test_the_largest_gain_comes_first(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", str(run), "-q"]) == 0
    text = capsys.readouterr().out
    assert text.index("bf16-mixed") < text.index("channels last")
    assert "18.0 ms to 22.0 ms" in text
    assert "18.0 % to 22.0 %" in text
    assert "-6.00 ms to -4.00 ms" in text
    assert "made on another device" in text
    assert "Not measured: my::op: it is no operator of PyTorch" in text
    assert not (run / PROBE_NAME).exists()


def test_as_json_and_saved(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", str(run), "-q", "--json", "--save"]) == 0
    assert load_document("probe", capsys.readouterr().out)["device"] == "A CPU"
    assert read_probe(run / PROBE_NAME) == PROBE


def test_as_markdown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run / "new" / "probe.md"
    assert main(["probe", str(run), "-q", f"--markdown={file}"]) == 0
    text = file.read_text()
    assert "| bf16-mixed | 18.0 ms to 22.0 ms | 18.0 % to 22.0 % | 81.0 % |" in text
    assert "| conv2d | 2 | 60.0 ms | 30.0 ms | 20.0 ms |" in text
    assert main(["probe", str(run), "-q", f"--markdown={file}/x.md"]) == 2
    assert "x.md: cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_seconds_must_be_positive(run: Path, seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", str(run), f"--seconds={seconds}"]) == 2
    assert f"--seconds {seconds}: must be greater than 0" in capsys.readouterr().err


def test_a_missing_trace_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", str(tmp_path / "nothing"), "-q"]) == 2
    assert "nothing" in capsys.readouterr().err


def test_a_trace_has_no_folder_to_save_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank0.1.pt.trace.json").write_bytes(Path("tests/traces/two_steps.json").read_bytes())
    assert main(["probe", str(tmp_path / "rank0.1.pt.trace.json"), "--save"]) == 2
    error = capsys.readouterr().err
    assert "is not the folder of a run" in error
    assert "leave out --save" in error
    assert "probing" not in error


def test_a_report_names_its_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.json").write_text('{"sources": ["/elsewhere/rank0.1.pt.trace.json.gz"]}')
    assert main(["probe", str(tmp_path / "report.json"), "-q"]) == 2
    assert "Copy the traces next to the report" in capsys.readouterr().err
    trace = Path("tests/traces/two_steps.json").read_bytes()
    (tmp_path / "rank0.1.pt.trace.json.gz").write_bytes(trace)
    assert main(["probe", str(tmp_path / "report.json"), "-q"]) == 2
    assert "has no operator calls that this machine can repeat" in capsys.readouterr().err
