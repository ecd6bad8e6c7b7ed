"""The site builds without a warning, and its hook makes links of the repository into links of the site."""

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path, PurePosixPath
from types import ModuleType, SimpleNamespace

import pytest

from lightning_perf import commands
from tests.support.markdown import DOCS, ROOT, RULE_PAGES, load

pytest.importorskip("mkdocs", reason="needs the development packages")


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    return load(DOCS / "hooks.py")


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        ("README.md", "](docs/limits.md)", "](limits.md)"),
        ("README.md", "](docs/precision.md#cost)", "](precision.md#cost)"),
        ("README.md", "](benchmarks/results/recipe.md)", "](results/recipe.md)"),
        (
            "README.md",
            "](CONTRIBUTING.md)",
            "](https://github.com/lightning-perf/lightning_perf/blob/main/CONTRIBUTING.md)",
        ),
        ("docs/limits.md", "](definitions.md)", "](definitions.md)"),
        ("docs/limits.md", "](#recording)", "](#recording)"),
        ("docs/limits.md", "](../benchmarks/results/recipe.md)", "](results/recipe.md)"),
        ("docs/limits.md", "](../README.md#install)", "](index.md#install)"),
        ("docs/limits.md", "](../recipes)", "](https://github.com/lightning-perf/lightning_perf/blob/main/recipes)"),
        ("docs/limits.md", "](https://pytorch.org)", "](https://pytorch.org)"),
        ("docs/limits.md", "](gone.md)", "](gone.md)"),
        ("benchmarks/results/recipe.md", "](../../docs/data.md)", "](../data.md)"),
        ("docs/findings.md", "](../lightning_perf/findings/pages/allocator.md)", "](findings/allocator.md)"),
        ("lightning_perf/findings/pages/allocator.md", "](memory-full.md)", "](memory-full.md)"),
        ("lightning_perf/findings/pages/allocator.md", "](../../../docs/precision.md#cost)", "](../precision.md#cost)"),
    ],
)
def test_links_are_moved(hooks: ModuleType, source: str, link: str, expected: str) -> None:
    assert hooks.relocated(f"See [it{link}.", PurePosixPath(source)) == f"See [it{expected}."


def test_results_of_a_gpu_are_pages_as_others(
    hooks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "benchmarks" / "results"
    (results / "gpu").mkdir(parents=True)
    for name in ("planted.md", "gpu/planted.md"):
        (results / name).write_text("# Planted faults\n")
    monkeypatch.setattr(hooks, "ROOT", tmp_path)
    config = hooks.on_config(SimpleNamespace(nav=["index.md"]))
    pages = [{"Planted (gpu)": "results/gpu/planted.md"}, {"Planted": "results/planted.md"}]
    assert config.nav == ["index.md", {"Measured": pages}]


def test_each_rule_has_a_page_below_the_findings(hooks: ModuleType) -> None:
    config = hooks.on_config(SimpleNamespace(nav=[{"Reference": [{"Findings": "findings.md"}, "api.md"]}]))
    ((findings,), api) = config.nav[0]["Reference"][0].values(), config.nav[0]["Reference"][1]
    assert api == "api.md"
    assert findings[0] == "findings.md"
    assert findings[1:] == [{page.stem: f"findings/{page.name}"} for page in RULE_PAGES]


def test_the_page_of_the_command_line_lists_the_help_of_every_command(hooks: ModuleType) -> None:
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    listed = hooks.help_of_commands(page)
    modules = (
        importlib.import_module(found.name)
        for found in pkgutil.iter_modules(commands.__path__, "lightning_perf.commands.")
    )
    names = [module.__name__.rpartition(".")[2] for module in modules if hasattr(module, "HELP")]
    assert len(names) == listed.count("\n## lightning-perf ")
    for name in names:
        assert f"## lightning-perf {name}\n\n```text\nusage: lightning-perf {name} " in listed
    assert "usage: python -m recipes.signlang predict " in listed


@pytest.mark.slow
def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "PerfCallback()" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    results = ROOT / "benchmarks" / "results"
    for page in results.rglob("*.md"):
        assert (tmp_path / "site" / "results" / page.relative_to(results).with_suffix(".html")).is_file()
