"""The public names and their documents: the same results from Python as from the command line."""

import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lightning_perf
from lightning_perf import Compared, Comparison, PerfReport, ReportError, Sweep, Tradeoff, TuneResult
from lightning_perf.cli import main
from lightning_perf.compare import CompareError, Settings, Unfair, UnfairError, find_records
from lightning_perf.inference import InferenceError
from tests.compare.support import write_run
from tests.page.tradeoff_sample import hand_made_tradeoff
from tests.support.absent_packages import without

TRACES = Path(__file__).parent / "traces"
TRACE = str(TRACES / "two_steps.pt.trace.json")
OTHER = str(TRACES / "two_steps.json")

HEAVY = {"torch", "lightning", "pytorch_lightning", "tensorboard", "scipy", "matplotlib"}
USE = """
import io, sys
import lightning_perf
trace, folder = sys.argv[1:]
report = lightning_perf.analyze(trace)
report.print(file=io.StringIO())
with open(folder + "/report.json", "w") as file:
    file.write(report.to_json())
assert lightning_perf.PerfReport.load(folder + "/report.json") == report
report.to_markdown()
report.write_html(folder + "/report.html")
compared = report.diff(report)
compared.print(file=io.StringIO())
compared.to_markdown()
compared.write_html(folder + "/diff.html")
lightning_perf.Comparison, lightning_perf.Tradeoff, lightning_perf.Sweep, lightning_perf.TuneResult
print("done")
"""

LIGHT = """
import sys
before = set(sys.modules)
import lightning_perf
dir(lightning_perf)
heavy = {"torch", "lightning", "numpy", "rich", "msgspec", "scipy", "matplotlib"}
print(sorted(heavy & {name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.strip()


def printed(document: object, *arguments: object, **options: object) -> str:
    file = io.StringIO()
    document.print(*arguments, file=file, **options)  # type: ignore[attr-defined]
    return file.getvalue()


def same_page(one: Path, other: Path) -> bool:
    """Whether two pages differ in nothing but the nonce of their security policy."""

    def without_nonce(path: Path) -> str:
        return re.sub(r"nonce(=\"|-)[\w-]+", "nonce", path.read_text(encoding="utf-8"))

    return without_nonce(one) == without_nonce(other)


@pytest.fixture
def arms(tmp_path: Path) -> dict[str, str]:
    for n in range(6):
        write_run(tmp_path / "fp32" / f"run{n}", step_ms=100 + n, train__seed=n, started=2.0 * n)
        write_run(
            tmp_path / "amp" / f"run{n}",
            step_ms=90 + n,
            train__seed=n,
            started=2.0 * n + 1,
            train__precision="16-mixed",
        )
    return {name: str(tmp_path / name) for name in ("fp32", "amp")}


@pytest.mark.parametrize("name", lightning_perf.__all__)
def test_every_public_name_loads(name: str) -> None:
    assert getattr(lightning_perf, name) is not None


def test_the_import_loads_no_other_package() -> None:
    assert run(LIGHT) == "[]"


def test_reports_work_without_torch(tmp_path: Path) -> None:
    assert run(without(HEAVY, USE, error=ImportError), TRACE, str(tmp_path)) == "done"


@pytest.fixture
def same_as(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Check that the methods of a document show the same as a command, which writes the same files."""

    def check(document: Any, *command: str, title: str | None = None, **shown: int) -> None:
        page, text, written = (str(tmp_path / name) for name in ("command.html", "command.md", "method.html"))
        assert main([*command, "--html", page, "--markdown", text]) == 0
        assert printed(document, **shown) == capsys.readouterr().out
        assert document.to_markdown(**shown) == Path(text).read_text(encoding="utf-8")
        document.write_html(written, title=title)
        assert same_page(Path(written), Path(page))
        assert main([*command, "--json"]) == 0
        assert document.to_json() == capsys.readouterr().out
        assert type(document).from_json(document.to_json()) == document

    return check


def test_reports_and_diffs_show_what_the_commands_show(same_as: Callable[..., None]) -> None:
    report = lightning_perf.analyze(TRACE)
    for top in (1, 8):
        same_as(report, "analyze", TRACE, "--top", str(top), top=top)
    same_as(report.diff(lightning_perf.analyze(OTHER)), "diff", TRACE, OTHER)


def test_a_comparison_shows_what_the_command_shows(
    arms: dict[str, str], tmp_path: Path, same_as: Callable[..., None]
) -> None:
    comparison = lightning_perf.compare_runs(arms, Settings(treatment=("precision",)))
    given = [f"{name}={path}" for name, path in arms.items()]
    same_as(comparison, "compare", *given, "--treatment", "precision", title=" and ".join(given))
    comparison.write_html(tmp_path / "untitled.html")
    assert "<title>fp32 and amp" in (tmp_path / "untitled.html").read_text(encoding="utf-8")


def test_records_compare_as_their_folders_do(arms: dict[str, str]) -> None:
    settings = Settings(treatment=("precision",))
    records = {name: find_records(Path(path)) for name, path in arms.items()}
    assert lightning_perf.compare_runs(records, settings) == lightning_perf.compare_runs(arms, settings)


def test_a_refusal_shows_what_the_command_shows(
    arms: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "amp" / "run6", step_ms=90, train__batch_size=64, started=20.0)
    with pytest.raises(UnfairError) as raised:
        lightning_perf.compare_runs(arms)
    refusal = raised.value.refusal
    assert isinstance(refusal, Unfair)
    command = ["compare", *(f"{name}={path}" for name, path in arms.items())]
    assert main([*command, "--json", "--markdown", str(tmp_path / "command.md")]) == 3
    shown = capsys.readouterr()
    assert (printed(refusal), refusal.to_json()) == (shown.err, shown.out)
    assert refusal.to_markdown() == (tmp_path / "command.md").read_text(encoding="utf-8")
    refusal.print()
    assert capsys.readouterr().err == shown.err


def test_a_tradeoff_shows_saves_and_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tradeoff = hand_made_tradeoff()
    tradeoff.print()
    out = capsys.readouterr().out
    assert printed(tradeoff) == out
    assert all(row.variant in out and row.variant in tradeoff.to_markdown().replace("\\", "") for row in tradeoff.rows)
    (tmp_path / "tradeoff.json").write_text(tradeoff.to_json(), encoding="utf-8")
    assert Tradeoff.load(tmp_path / "tradeoff.json") == tradeoff
    tradeoff.write_html(tmp_path / "tradeoff.html")
    assert f"<title>{tradeoff.model}" in (tmp_path / "tradeoff.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("document", "error"),
    [
        (PerfReport, ReportError),
        (Compared, ReportError),
        (Comparison, CompareError),
        (Tradeoff, InferenceError),
        (Sweep, InferenceError),
        (TuneResult, lightning_perf.TuneError),
    ],
)
def test_an_unreadable_document_is_named(document: type[PerfReport], error: type[Exception], tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    for text, said in (
        ("[]", "this is no"),
        ('{"schema_version": 99}', "upgrade"),
        ('{"schema_version": 1}', "damaged"),
    ):
        path.write_text(text)
        with pytest.raises(error, match=rf"saved\.json: .*{said}"):
            document.load(path)
    with pytest.raises(FileNotFoundError):
        document.load(tmp_path / "absent.json")


def test_a_compact_document_is_one_line() -> None:
    report = lightning_perf.analyze(TRACE)
    assert "\n" not in report.to_json(indent=None)
    assert PerfReport.from_json(report.to_json(indent=None)) == report


def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(lightning_perf.PageError, match="Cannot write"):
        lightning_perf.analyze(TRACE).write_html(tmp_path / "absent" / "report.html")
