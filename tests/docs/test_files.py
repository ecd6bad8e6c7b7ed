"""docs/files.md lists every file, fact, metric and environment variable that the code has."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lightning_perf.compare.study_options import OPTIONS_NAME
from lightning_perf.history.store import HISTORY_NAME, StoredBaseline, StoredRun
from lightning_perf.inference.run import TRADEOFF_FILE
from lightning_perf.inference.variants.artefact import ARTEFACT_FILE
from lightning_perf.machine import environment
from lightning_perf.run_files.captures import CAPTURES, WINDOWS, CaptureRecord
from lightning_perf.run_files.estimates import ESTIMATES_NAME, EstimateOutcome
from lightning_perf.run_files.journal import STUDY_NAME
from lightning_perf.run_files.numerics.precision import PRECISION_NAME
from lightning_perf.run_files.numerics.samples import GRADIENT_SAMPLES, SCALE_EVENTS, GradientSample
from lightning_perf.run_files.report import REPORT_NAME
from lightning_perf.run_files.run_folder import FOLDER_MARKER, REQUEST_NAME, START_NAME
from lightning_perf.run_files.run_record import (
    RECORD_NAME,
    RUN_RECORD,
    EpochEnded,
    FactsAdded,
    HealthSeen,
    Place,
    RunEnded,
    RunStarted,
)
from lightning_perf.run_files.steps import STEPS
from tests.support.markdown import DOCS, ROOT

TEXT = (DOCS / "files.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "lightning_perf"
MODULES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
CONSTANTS = {
    target.id: statement.value.value
    for tree in MODULES.values()
    for statement in tree.body
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
    for target in statement.targets
    if isinstance(target, ast.Name)
}


def section(title: str) -> str:
    """The text of a section, up to the next heading of its level."""
    level, _, _ = title.partition(" ")
    begin = TEXT.index(f"{title}\n")
    end = re.search(rf"^#{{1,{len(level)}}} ", TEXT[begin + len(title) :], re.MULTILINE)
    return TEXT[begin:] if end is None else TEXT[begin : begin + len(title) + end.start()]


def quoted(text: str) -> set[str]:
    """Everything between backticks."""
    return set(re.findall(r"`([^`\n]+)`", text))


def listed(name: str) -> list[str]:
    """The list between two comments of that name."""
    return [entry.strip(" `\n") for entry in TEXT.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0].split(",")]


def strings(pattern: str, folder: str = "") -> set[str]:
    """The string constants in the package that match a pattern as a whole."""
    return {
        node.value
        for path, tree in MODULES.items()
        if path.is_relative_to(PACKAGE / folder)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(pattern, node.value)
    }


def test_every_file_is_listed() -> None:
    logs = [log.path(Path(), 0) for log in (STEPS, WINDOWS, CAPTURES, SCALE_EVENTS, GRADIENT_SAMPLES)]
    names = {RECORD_NAME, REPORT_NAME, PRECISION_NAME, FOLDER_MARKER, REQUEST_NAME, START_NAME, ESTIMATES_NAME}
    names |= {log.name.replace("rank0", "rankN") for log in logs}
    assert names <= quoted(section("## A run's folder"))
    names = {STUDY_NAME, OPTIONS_NAME, TRADEOFF_FILE, ARTEFACT_FILE, ESTIMATES_NAME}
    assert names <= quoted(section("## Folders of studies and of inference"))


def test_measured_estimates_are_listed() -> None:
    named = re.findall(r"^\| (`[^|]+`) \|", section("### Measured estimates"), re.MULTILINE)
    fields = [field for names in named for field in re.findall(r"`(\w+)`", names)]
    assert sorted(fields) == sorted(EstimateOutcome.__struct_fields__)


def test_no_other_files_are_named_in_the_code() -> None:
    names = {str(value) for value in CONSTANTS.values() if re.fullmatch(r"[\w.-]+\.jsonl?", str(value))}
    assert names <= {name.rpartition("/")[2] for name in quoted(TEXT)}


@pytest.fixture
def run(sandbox: Path) -> Path:
    """The folder of a small fit."""
    return sandbox / "lightning_logs" / "version_0" / "perf"


def test_a_fit_leaves_listed_files_only(run: Path) -> None:
    own = [path for path in run.iterdir() if not path.name.endswith((".html", ".md"))]  # other tests write these
    left = {re.sub(r"rank\d+", "rankN", re.sub(r"\d{15,}", "TIME", path.name)) for path in own}
    assert {"report.json", "steps.rankN.jsonl", "rankN.TIME.pt.trace.json.gz"} <= left
    assert left <= quoted(section("## A run's folder"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("started", RunStarted),
        ("facts", FactsAdded),
        ("epoch", EpochEnded),
        ("health", HealthSeen),
        ("ended", RunEnded),
    ],
)
def test_every_field_of_the_run_record_is_listed(name: str, kind: type[msgspec.Struct]) -> None:
    rows = re.findall(r"^\| (?:`(\w+)`)? ?\| `(\w+)` \|", section("### The run record"), re.MULTILINE)
    fields: dict[str, list[str]] = {}
    current = ""
    for first, field in rows:
        current = first or current
        fields.setdefault(current, []).append(field)
    assert fields[name] == [field.name for field in msgspec.structs.fields(kind)]
    assert kind.__struct_config__.tag == name


def test_every_field_of_the_other_logs_is_listed() -> None:
    assert {field.name for field in msgspec.structs.fields(Place)} <= quoted(section("### The run record"))
    for title, kind in (("### Captures", CaptureRecord), ("### Gradient samples", GradientSample)):
        rows = re.findall(r"^\| `(\w+)` \|", section(title), re.MULTILINE)
        assert rows == list(kind.__struct_fields__)


@pytest.mark.parametrize(("name", "kind"), [("run", StoredRun), ("baseline", StoredBaseline)])
def test_every_field_of_a_history_is_listed(name: str, kind: type[msgspec.Struct]) -> None:
    text = section("## The history")
    begin = text.index(f"| `{name}` |")
    end = text.find("\n| `", begin + 1)
    assert {field.name for field in msgspec.structs.fields(kind)} <= quoted(text[begin : None if end < 0 else end]) | {
        "version"
    }
    assert kind.__struct_config__.tag == name
    assert {HISTORY_NAME, "version"} <= quoted(text)


def test_every_fact_is_listed(run: Path) -> None:
    known = quoted(section("## Facts"))
    recorded = {
        fact
        for line in RUN_RECORD.read(run / RECORD_NAME)
        if isinstance(line, (RunStarted, FactsAdded))
        for fact in line.facts
    }
    pattern = r"(?:train|model|data|device|flags|host|code|version)\.[a-z]\w*[a-z]"
    constant = strings(pattern, "machine/environment.py") | strings(pattern, "callbacks/run_record")
    packages = {f"version.{package}" for package in environment.PACKAGES}
    assert {"train.seed", "data.first_batch", "host.cpu"} <= recorded
    assert "device.driver" in constant
    for fact in (recorded | constant) - packages:
        assert fact in known or fact.startswith("env."), fact


def test_the_lists_are_those_of_the_code() -> None:
    assert listed("packages") == list(environment.PACKAGES)
    assert listed("variables") == list(environment.VARIABLES)
    assert listed("groups") == list(environment.VARIABLE_GROUPS)
    assert set(environment.PLACES) <= quoted(section("### Recorded as facts"))


def test_every_metric_is_listed() -> None:
    metrics = strings(r"perf/\w+", "callbacks")
    assert "perf/step_time_ms" in metrics
    assert metrics <= quoted(section("## Logged metrics"))
    assert {"perf/recorded/step_ms", "perf/recorded/CATEGORY_ms"} <= quoted(section("## Logged metrics"))


def variables(tree: ast.Module) -> Iterator[str]:
    """The environment variables that a module reads or sets in its own process.

    A variable is a literal, or a constant of a module with a name that ends in ``_VARIABLE`` or ``_VARIABLES``.
    """
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.endswith(("_VARIABLE", "_VARIABLES")):
                yield from (str(each.value) for each in ast.walk(value) if isinstance(each, ast.Constant))
    for node in ast.walk(tree):
        key: ast.expr | None = None
        match node:
            case ast.Call(func=ast.Attribute(value=source), args=[first, *_]) if ast.unparse(source) == "os.environ":
                key = first
            case ast.Call(func=function, args=[first, *_]) if ast.unparse(function) == "os.getenv":
                key = first
            case ast.Subscript(value=source, slice=index) if ast.unparse(source) == "os.environ":
                key = index
            case ast.Compare(left=left, comparators=[source]) if ast.unparse(source) == "os.environ":
                key = left
        if isinstance(key, ast.Constant):
            yield str(key.value)
        elif isinstance(key, ast.Name) and key.id in CONSTANTS:
            yield str(CONSTANTS[key.id])


def test_every_environment_variable_is_listed() -> None:
    used = {name for tree in MODULES.values() for name in variables(tree)}
    assert {"LIGHTNING_PERF_CACHE", "LIGHTNING_PERF_DIR", "RAY_ADDRESS"} <= used
    assert used <= quoted(section("## Environment variables"))
    own = strings(r"LIGHTNING_PERF_[A-Z]+")
    assert own <= quoted(section("## Environment variables"))
