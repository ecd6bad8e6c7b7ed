"""`Explanation`: the pages of the rules, as a document."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from lightning_perf.errors import LocatedError
from lightning_perf.findings.pages import read_rule_page, read_symptoms, rule_page_url

SCHEMA_VERSION = 2


class UnknownRuleError(LocatedError):
    """There is no rule with this ID. The message names the closest one."""


@dataclass(frozen=True)
class ExplainedRule:
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
