"""The pages that explain the rules, and `Explanation`, the document of them: one Markdown file per rule."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_perf.errors import LocatedError
from lightning_perf.lazy_imports import page_url

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

FOLDER = "lightning_perf/findings/pages"

_RULE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_COMMENT = re.compile(r"<!--.*?-->\n+", re.DOTALL)
_RELATIVE_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")
_SYMPTOM = re.compile(r"^## Symptom\n+(?P<first>.+?\.)(?=\s)", re.MULTILINE | re.DOTALL)


def rule_page_url(rule: str) -> str:
    """Return the address of the page that explains a rule."""
    return page_url(f"{FOLDER}/{rule}.md")


def _folder() -> Traversable:
    from importlib.resources import files  # a report names rules, and reads no page

    return files(__name__)


def read_rule_page(rule: str) -> str:
    """Read the page of a rule as Markdown for a terminal: without comments, and with absolute links."""
    page = _folder() / f"{rule}.md"
    if not _RULE.fullmatch(rule) or not page.is_file():
        raise KeyError(rule)
    text = _COMMENT.sub("", page.read_text(encoding="utf-8"))
    return _RELATIVE_LINK.sub(lambda match: f"]({_absolute(match[1])})", text)


def read_symptoms() -> dict[str, str]:
    """Read the first sentence of every page's section *Symptom*, by the rule's ID in alphabetical order."""
    symptoms = {}
    for page in sorted(_folder().iterdir(), key=lambda entry: entry.name):
        if page.name.endswith(".md"):
            found = _SYMPTOM.search(page.read_text(encoding="utf-8"))
            symptoms[page.name.removesuffix(".md")] = " ".join(found["first"].split()) if found else ""
    return symptoms


def _absolute(target: str) -> str:
    """Return the address of a file that a page links to by a relative path."""
    path, hash_sign, anchor = target.partition("#")
    parts = FOLDER.split("/")
    for part in path.split("/"):
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return page_url(f"{'/'.join(parts)}{hash_sign}{anchor}")


SCHEMA_VERSION = 2


class UnknownRuleError(LocatedError):
    """There is no rule with this ID. The message names the closest one."""


class ExplainedRule(Struct, frozen=True):
    """A rule of the findings.

    Attributes:
        rule: Its ID, as reports show it.
        symptom: Its symptom, in one sentence.
        page: Address of its page.
        text: Its page as Markdown; ``None`` in the list of all rules.
    """

    rule: str
    symptom: str
    page: str
    text: str | None = None


class Explanation(Struct, frozen=True):
    """One rule with its page, or the list of all rules without pages.

    Attributes:
        rules: The rules.
        schema_version: `SCHEMA_VERSION` of the writer.
    """

    rules: tuple[ExplainedRule, ...]
    schema_version: int = SCHEMA_VERSION


def explain(rule: str | None = None) -> Explanation:
    """Explain a rule, or list all rules.

    Example:
        >>> explain("input-bound").rules[0].symptom
        'The training thread waits for its next batch.'
    """
    symptoms = read_symptoms()
    if rule is None:
        return Explanation(tuple(ExplainedRule(name, text, rule_page_url(name)) for name, text in symptoms.items()))
    if rule not in symptoms:
        near = difflib.get_close_matches(rule, symptoms, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise UnknownRuleError(repr(rule), "unknown rule", f"{hint}To list all rules, run lightning-perf explain")
    return Explanation((ExplainedRule(rule, symptoms[rule], rule_page_url(rule), read_rule_page(rule)),))
