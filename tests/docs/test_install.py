"""One function says how to install the package: errors, README and docs all show its command."""

import re
import sys
from pathlib import Path

import pytest

import lightning_perf
from lightning_perf.lazy_imports import REPOSITORY_URL, install_command, page_url
from tests.support.markdown import DOCS, PAGES, ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_COMMAND = re.compile(r"""pip install ["'](?:lightning-perf|\.)(?:\[(?P<extra>[\w,]+)\])?[^"']*["']""")
SOURCES = [
    *sorted((ROOT / "lightning_perf").rglob("*.py")),
    *sorted((ROOT / "lightning_perf").rglob("*.js")),
    *sorted((ROOT / "lightning_perf").rglob("*.md")),
]


def wrong_commands(text: str) -> list[str]:
    """Return the commands that install this package in another way than `install_command`."""
    return [match[0] for match in _COMMAND.finditer(text) if match[0] != install_command(match["extra"] or "")]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_pages_show_one_way_to_install(page: Path) -> None:
    assert wrong_commands(page.read_text(encoding="utf-8")) == []


def test_the_code_states_the_command_once() -> None:
    stated = [
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if path.suffix != ".md" and _COMMAND.search(path.read_text(encoding="utf-8"))
    ]
    assert stated == ["lightning_perf/lazy_imports.py"]
    pages = [path for path in SOURCES if path.suffix == ".md"]
    assert [path for path in pages if wrong_commands(path.read_text(encoding="utf-8"))] == []


def test_another_way_would_be_noticed() -> None:
    assert wrong_commands(f"$ {install_command('train')}\n") == []
    assert wrong_commands(f"$ {install_command()}\n") == []
    assert wrong_commands('$ pip install ".[train]"\n') == ['pip install ".[train]"']
    assert wrong_commands('pip install "lightning-perf @ git+https://elsewhere"') != []


def test_extras_of_the_commands_exist() -> None:
    for path in (*PAGES, *SOURCES):
        text = path.read_text(encoding="utf-8")
        named = {*re.findall(r"install_command\([\"']([\w,]+)[\"']\)", text), *re.findall(r"\bextra=\"(\w+)\"", text)}
        named |= {match["extra"] for match in _COMMAND.finditer(text) if match["extra"]}
        assert {extra for names in named for extra in names.split(",")} <= set(PROJECT["optional-dependencies"]), path


def test_the_project_has_one_address() -> None:
    assert PROJECT["urls"]["Repository"] == REPOSITORY_URL
    assert all(url.startswith(REPOSITORY_URL) for url in PROJECT["urls"].values())
    assert page_url("docs/limits.md") == f"{REPOSITORY_URL}/blob/main/docs/limits.md"


def test_the_version_is_stated_once() -> None:
    assert "version" in PROJECT["dynamic"]
    newest = re.search(r"^## (\S+?),?(?: |$)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert newest is not None
    assert newest[1] == lightning_perf.__version__


def test_every_supported_python_is_tried_before_a_release() -> None:
    supported = sorted(re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"])))
    assert PROJECT["requires-python"] == f">={min(supported, key=lambda name: int(name[2:]))}"
    for workflow in ("ci", "release"):
        text = (ROOT / ".github" / "workflows" / f"{workflow}.yml").read_text(encoding="utf-8")
        (matrix,) = re.findall(r"^ +python: \[(.+)\]$", text, re.M)
        assert sorted(re.findall(r"3\.\d+", matrix)) == supported


def test_one_constant_switches_to_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_perf.lazy_imports._SOURCE", "")
    assert install_command("train") == 'pip install "lightning-perf[train]"'
    assert install_command() == 'pip install "lightning-perf"'
    assert wrong_commands((DOCS / "quickstart.md").read_text(encoding="utf-8")) != []
