"""The definitions on the page are those of the docs, and every one that is asked for is there."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from lightning_perf.analysis.model.memory_blocks import MemoryCategory
from lightning_perf.analysis.steps.breakdown import CATEGORIES
from lightning_perf.documents import page_json
from tests.page.samples import hand_made_report, trained_precision
from tests.page.tradeoff_sample import hand_made_tradeoff

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "lightning_perf" / "page" / "assets"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("definitions_json", ROOT / "docs" / "definitions_json.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_they_are_those_of_the_docs(generator: ModuleType) -> None:
    assert generator.TARGET.read_text() == generator.render(), "run: python docs/definitions_json.py"


def test_every_definition_that_a_page_names_is_there(tmp_path: Path) -> None:
    known = json.loads((ASSETS / "text" / "definitions.json").read_text())
    report = hand_made_report(tmp_path, trained_precision())
    documents = (report, report.diff(report), hand_made_tradeoff())
    pages = b"".join(page_json(document) for document in documents).decode()
    named = set(re.findall(r'"definition":"([^"]+)"', pages))
    for module in ASSETS.rglob("*.js"):
        named |= set(re.findall(r'definition: "([^"]+)"', module.read_text()))
    assert len(named) > 60
    assert named <= set(known)
    assert {name for name, parent in CATEGORIES if parent is None} <= set(known)
    assert {f"memory-{name}" for name in get_args(MemoryCategory)} <= set(known)


def test_terms_links_and_lists_are_read(generator: ModuleType) -> None:
    markdown = (
        "# Title\n\n## One thing\n\nIt is [this](x.md) and *that*.\nMore of it.\n\n- **A term**: what\n  it means.\n"
        "- *Other*: yes.\n\nNot part of it.\n\n## Two × three\n\n"
        "| category | active while |\n|---|---|\n| `cat` | it runs |\n"
    )
    assert generator.definitions(markdown) == {
        "one-thing": {"title": "One thing", "text": ["It is this and that. More of it."], "section": "One thing"},
        "a-term": {"title": "A term", "text": ["What it means."], "section": "One thing"},
        "other": {"title": "Other", "text": ["Yes."], "section": "One thing"},
        "cat": {"title": "cat", "text": ["It runs"], "section": "Two × three"},
    }
