from __future__ import annotations

import re
from pathlib import Path

import pytest

import lightning_perf
from lightning_perf.terminal_text import ascii_fallback

PACKAGE = Path(lightning_perf.__file__).parent


def test_what_the_encoding_has_stays() -> None:
    assert ascii_fallback("100 µs – 学", "utf-8") == "100 µs – 学"
    assert ascii_fallback("100 µs", "latin-1") == "100 µs"
    assert ascii_fallback("µ \ud800", None) == "µ \ud800"


@pytest.mark.parametrize("text", ["学习", "\ud800", "\N{GRINNING FACE}"])
def test_what_has_no_likeness_is_a_question_mark(text: str) -> None:
    assert ascii_fallback(text, "ascii") == "?" * len(text)


def test_every_character_that_figures_are_written_with_has_a_likeness() -> None:
    units = (PACKAGE / "units.py").read_text(encoding="utf-8")
    words = "".join(path.read_text(encoding="utf-8") for path in (PACKAGE / "report").rglob("*.py"))
    assert "?" not in ascii_fallback("".join(sorted(set(re.findall(r"[^\x00-\x7f]", units + words)))), "ascii")
