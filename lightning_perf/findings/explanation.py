"""`Explanation`: the pages of the rules and of the mistakes in mixed precision, as a document."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from lightning_perf.errors import LocatedError
from lightning_perf.findings.pages import (
    mistake_page_url,
    read_mistake_symptoms,
    read_rule_page,
    read_symptoms,
    rule_page_url,
)

__all__ = ["SCHEMA_VERSION", "ExplainedRule", "Explanation", "UnknownRuleError", "explain"]

SCHEMA_VERSION = 1


class UnknownRuleError(LocatedError):
    """There is no rule with this ID. The message names the closest one."""


@dataclass(frozen=True)
class ExplainedRule:
    """A rule of the findings, or a mistake in mixed precision.

    Attributes:
        rule: Its ID, as reports show it.
        kind: ``finding`` or ``mistake``.
        symptom: Its symptom, in one sentence.
        page: Address of its page.
        text: Its page as Markdown; ``None`` in the list of all rules.
    """

    rule: str
    kind: Literal["finding", "mistake"]
    symptom: str
    page: str
    text: str | None = None


@dataclass(frozen=True)
class Explanation:
    """One rule with its page, or the list of all rules without pages.

    Attributes:
        rules: The rules.
        schema_version: `SCHEMA_VERSION` of the writer.
    """

    rules: tuple[ExplainedRule, ...]
    schema_version: int = SCHEMA_VERSION


def explain(rule: str | None = None) -> Explanation:
    """Explain a rule, or list all rules.

    Args:
        rule: The ID of a rule or a mistake; ``None`` for the list.

    Raises:
        UnknownRuleError: There is no such rule.

    Example:
        >>> explain("input-bound").rules[0].kind
        'finding'
    """
    known = {
        name: ExplainedRule(name, "finding", symptom, rule_page_url(name)) for name, symptom in read_symptoms().items()
    }
    for name, symptom in read_mistake_symptoms().items():
        known[name] = ExplainedRule(name, "mistake", symptom, mistake_page_url(name))
    if rule is None:
        return Explanation(tuple(known.values()))
    found = known.get(rule)
    if found is None:
        near = difflib.get_close_matches(rule, known, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise UnknownRuleError(repr(rule), "unknown rule", f"{hint}To list all rules, run lightning-perf explain")
    return Explanation((ExplainedRule(rule, found.kind, found.symptom, found.page, read_rule_page(rule)),))
