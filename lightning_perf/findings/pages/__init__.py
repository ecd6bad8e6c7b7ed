"""The pages that explain the rules: one Markdown file per rule, in the wheel and on the documentation site."""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from typing import TYPE_CHECKING

from lightning_perf.project import page_url

if TYPE_CHECKING:
    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable

__all__ = ["mistake_page_url", "read_mistake_symptoms", "read_rule_page", "read_symptoms", "rule_page_url"]

FOLDER = "lightning_perf/findings/pages"

_MISTAKES = "mistakes"
"""Folder of the pages about mistakes in mixed precision, next to those of the rules."""

_RULE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_COMMENT = re.compile(r"<!--.*?-->\n+", re.DOTALL)
_RELATIVE_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")
_SYMPTOM = re.compile(r"^## Symptom\n+(?P<first>.+?\.)(?=\s)", re.MULTILINE | re.DOTALL)


def rule_page_url(rule: str) -> str:
    """Return the address of the page that explains a rule.

    Args:
        rule: The rule's ID.

    Example:
        >>> rule_page_url("input-bound").removeprefix("https://github.com/")
        'lightning-perf/lightning_perf/blob/main/lightning_perf/findings/pages/input-bound.md'
    """
    return page_url(f"{FOLDER}/{rule}.md")


def mistake_page_url(kind: str) -> str:
    """Return the address of the page that explains a mistake in mixed precision.

    Args:
        kind: The mistake's ID.

    Example:
        >>> mistake_page_url("half-loss").removeprefix("https://github.com/")
        'lightning-perf/lightning_perf/blob/main/lightning_perf/findings/pages/mistakes/half-loss.md'
    """
    return page_url(f"{FOLDER}/{_MISTAKES}/{kind}.md")


def read_rule_page(rule: str) -> str:
    """Read the page of a rule, or of a mistake in mixed precision, as Markdown for a terminal.

    Args:
        rule: The ID of the rule or the mistake.

    Returns:
        The page without comments. Links are absolute, since the repository's other files are not installed.

    Raises:
        KeyError: There is no such rule.
    """
    if not _RULE.fullmatch(rule):
        raise KeyError(rule)
    for page, folder in (
        (files(__name__) / f"{rule}.md", FOLDER),
        (files(__name__) / _MISTAKES / f"{rule}.md", f"{FOLDER}/{_MISTAKES}"),
    ):
        if page.is_file():
            text = _COMMENT.sub("", page.read_text(encoding="utf-8"))
            return _with_absolute_links(text, folder)
    raise KeyError(rule)


def _with_absolute_links(text: str, folder: str) -> str:
    return _RELATIVE_LINK.sub(lambda match: f"]({_absolute(match[1], folder)})", text)


def read_symptoms() -> dict[str, str]:
    """Read the first sentence of every page's section *Symptom*, by the rule's ID in alphabetical order."""
    return _symptoms(files(__name__))


def read_mistake_symptoms() -> dict[str, str]:
    """Read the first sentence of the section *Symptom* on every page about a mistake, by the mistake's ID."""
    return _symptoms(files(__name__) / _MISTAKES)


def _symptoms(folder: Traversable) -> dict[str, str]:
    symptoms = {}
    for page in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if page.name.endswith(".md"):
            found = _SYMPTOM.search(page.read_text(encoding="utf-8"))
            symptoms[page.name.removesuffix(".md")] = " ".join(found["first"].split()) if found else ""
    return symptoms


def _absolute(target: str, folder: str) -> str:
    """Return the address of a file that a page links to by a relative path."""
    path, hash_sign, anchor = target.partition("#")
    parts = folder.split("/")
    for part in path.split("/"):
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return page_url(f"{'/'.join(parts)}{hash_sign}{anchor}")
