"""`analyze --probe`: the report has the probe, and the folder of the run keeps it."""

import shutil
from pathlib import Path

import pytest

import lightning_perf
from lightning_perf.cli import main
from lightning_perf.run_files.probe import PROBE_NAME, Probe, ProbedCall, ProbedChange, read_probe
from tests.support.schemas import load_document

DEMO = Path(lightning_perf.__file__).parent / "demo" / "recordings" / "before"
TRACE = "rank0.pt.trace.json.gz"
MS = 1e6
PROBE = Probe(
    device="A CPU",
    rank=0,
    sources=(TRACE,),
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
def run(tmp_path: Path) -> Path:
    shutil.copytree(DEMO, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, bool]]:
    """The seconds of each probe, and whether it compiles. Its result is the one above."""
    found: list[tuple[float, bool]] = []

    def probe(_: Path, seconds: float, *, compiles: bool) -> Probe:
        found.append((seconds, compiles))
        return PROBE

    monkeypatch.setattr("lightning_perf.probe.run.probe_path", probe)
    return found


def test_the_report_shows_the_probe_with_the_largest_gain_first(
    run: Path, asked: list[tuple[float, bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    markdown = run / "new" / "report.md"
    assert main(["analyze", str(run), "-q", "--probe", "--markdown", str(markdown)]) == 0
    text = capsys.readouterr().out
    text = text[text.index("\nProbe\n") :]
    assert text.index("bf16-mixed") < text.index("channels last")
    assert "18.0 ms to 22.0 ms" in text
    assert "18.0 % to 22.0 %" in text
    assert "−6.00 ms to −4.00 ms" in text
    assert "made on another device" in text
    assert "Not measured: my::op: it is no operator of PyTorch" in text
    assert "| bf16-mixed | 18.0 ms to 22.0 ms | 18.0 % to 22.0 % | 81.0 % |" in markdown.read_text()
    assert asked == [(10.0, False)]


def test_the_folder_keeps_the_probe_for_later_reports(
    run: Path, asked: list[tuple[float, bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(run), "--probe", "30", "--compile", "--json"]) == 0
    streams = capsys.readouterr()
    assert load_document("analyze", streams.out)["ranks"][0]["probe"]["device"] == "A CPU"
    assert "probing for about 30 s, and compiling for a minute or more" in streams.err
    assert asked == [(30.0, True)]
    assert read_probe(run / PROBE_NAME) == PROBE
    assert lightning_perf.analyze(run).ranks[0].probe == PROBE


def test_a_single_trace_has_no_folder_to_keep_it(
    run: Path, asked: list[tuple[float, bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(run / TRACE), "-q", "--probe=5"]) == 0
    assert "bf16-mixed" in capsys.readouterr().out
    assert asked == [(5.0, False)]
    assert not (run / PROBE_NAME).exists()


@pytest.mark.parametrize("value", ["0", "-1", "nan", "lightning_logs"])
def test_the_seconds_must_be_positive(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["analyze", f"--probe={value}"])
    assert stopped.value.code == 2
    assert f"'{value}' is not a positive number of seconds. Give PATH before --probe" in capsys.readouterr().err


def test_compile_needs_a_probe(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(run), "--compile"]) == 2
    assert "--compile: works only with --probe" in capsys.readouterr().err


def test_a_trace_without_operators_to_repeat_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "rank0.1.pt.trace.json"
    trace.write_bytes(Path("tests/traces/two_steps.json").read_bytes())
    assert main(["analyze", str(trace), "-q", "--probe"]) == 2
    assert "has no operator calls that this machine can repeat" in capsys.readouterr().err


def test_a_bad_path_is_named_before_any_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(tmp_path / "none"), "--probe"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "none: no such file or folder" in line
