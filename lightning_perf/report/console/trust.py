"""The trust line and the captures, on the console."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from lightning_perf.analysis.trust import Trust
from lightning_perf.report.captured import Captured
from lightning_perf.report.console.safe import plain, prose
from lightning_perf.report.sentences import trust_line

__all__ = ["captures_section", "trust_text"]


def trust_text(trust: Trust) -> Text:
    """How far the figures can be trusted, in yellow where not wholly."""
    doubtful = not trust.sound or any(window.returned is False for window in trust.windows)
    return Text.assemble(("Trust ", "yellow" if doubtful else "green"), prose(trust_line(trust)))


def captures_section(captures: Sequence[Captured]) -> RenderableType:
    """Each capture: when, how slow, and what differed."""
    lines: list[Text] = []
    for capture in captures:
        lines.append(Text.assemble(plain(capture.folder, "cyan"), f"  {capture.trigger.value}"))
        lines += [prose(f"  {sentence}") for sentence in capture.evidence]
    return Group(*lines)
