"""mkdocs: the README, the benchmarks' results and the pages of the findings become pages of the site without a copy.

The page of the command line gets the ``--help`` of every command.
"""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/lightning-perf/lightning_perf/blob/main"
README = PurePosixPath("README.md")
DOCS = PurePosixPath("docs")
RESULTS = PurePosixPath("benchmarks/results")
FINDINGS = PurePosixPath("lightning_perf/findings/pages")
FINDINGS_INDEX = "findings.md"
COMMANDS = "commands.md"
RECIPES = (
    *(f"python -m recipes.signlang {name}" for name in ("train", "compare", "infer", "predict")),
    "python -m recipes.tinylm",
)
OUTSIDE = ((RESULTS, "results"), (FINDINGS, "findings"))
"""Folders outside ``docs/`` and their names on the site."""

_LINK = re.compile(r'(?P<before>\]\(|\b(?:src|href)=")(?P<target>(?![a-z]+:|[#/])[^)#"\s]+)')


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give each page of results and each rule of the findings a line in the navigation."""
    rules = sorted(path.stem for path in (ROOT / FINDINGS).glob("*.md"))
    pages = [FINDINGS_INDEX, *({rule: f"findings/{rule}.md"} for rule in rules)]
    config.nav = _with_rules(config.nav or [], FINDINGS_INDEX, pages)
    results = ROOT / RESULTS
    measured = [PurePosixPath(page.relative_to(results).as_posix()) for page in sorted(results.rglob("*.md"))]
    config.nav = [*(config.nav or ()), {"Measured": [{_label(page): f"results/{page}"} for page in measured]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside ``docs/``."""
    files.append(File.generated(config, "index.md", abs_src_path=str(ROOT / README)))
    for folder, name in OUTSIDE:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".md", ".png", ".svg"}:
                page = PurePosixPath(name, path.relative_to(ROOT / folder).as_posix())
                files.append(File.generated(config, str(page), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Rewrite the links of the repository for the site, and list the commands on their page."""
    if page.file.src_uri == COMMANDS:
        markdown += help_of_commands(markdown)
    return relocated(markdown, _in_repository(PurePosixPath(page.file.src_uri)))


def help_of_commands(page: str) -> str:
    """Return the ``--help`` of every command that the page of the command line lists, and of the recipes."""
    output = runpy.run_path(str(ROOT / "docs" / "refresh.py"))["output"]
    names = re.findall(r"^  (\w+)  +\w", page.partition("\nlook:")[2], re.MULTILINE)
    programs = [f"lightning-perf {name}" for name in names] + list(RECIPES)
    return "".join(f"\n## {program}\n\n```text\n{output(f'{program} --help')}```\n" for program in programs)


def relocated(markdown: str, source: PurePosixPath) -> str:
    """Rewrite the relative links of a file for its page on the site.

    A link to another page leads to that page. A link to any other file of the repository leads to the repository. A
    broken link stays unchanged, so that mkdocs reports it.

    Args:
        markdown: The text.
        source: The file's path in the repository.
    """
    here = _on_site(source)
    assert here is not None, f"{source} is no page"

    def move(match: re.Match[str]) -> str:
        target = PurePosixPath(os.path.normpath(source.parent / match["target"]))
        if not (ROOT / target).exists():
            return match[0]
        there = _on_site(target)
        link = f"{REPOSITORY}/{target}" if there is None else os.path.relpath(there, here.parent)
        return f"{match['before']}{link}"

    return _LINK.sub(move, markdown)


def _on_site(path: PurePosixPath) -> PurePosixPath | None:
    """Return the page or image of the site for a file of the repository, or ``None`` if the site does not have it."""
    if path == README:
        return PurePosixPath("index.md")
    if path.suffix in {".md", ".png", ".svg"}:
        for folder, name in ((DOCS, ""), *OUTSIDE):
            if path.is_relative_to(folder):
                return name / path.relative_to(folder)
    return None


def _in_repository(page: PurePosixPath) -> PurePosixPath:
    if page == PurePosixPath("index.md"):
        return README
    for folder, name in OUTSIDE:
        if page.is_relative_to(name):
            return folder / page.relative_to(name)
    return DOCS / page


def _with_rules(nav: list[Any], index: str, pages: list[Any]) -> list[Any]:
    """The navigation with an index of rules replaced by a section of their pages, wherever it is."""
    replaced = []
    for entry in nav:
        if isinstance(entry, dict):
            (title, value), *_ = entry.items()
            if value == index:
                value = pages
            elif isinstance(value, list):
                value = _with_rules(value, index, pages)
            replaced.append({title: value})
        else:
            replaced.append(entry)
    return replaced


def _label(page: PurePosixPath) -> str:
    label = page.stem.replace("_", " ").capitalize()
    return f"{label} ({'/'.join(page.parent.parts)})" if page.parent.parts else label
