import re
from pathlib import Path

import pytest

import lightning_perf
from lightning_perf.show.terminal_text import ascii_fallback, plain, shorten

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
    paths = [*(PACKAGE / "report").rglob("*.py"), *(PACKAGE / "show").rglob("*.py"), *PACKAGE.rglob("blocks.py")]
    words = "".join(path.read_text(encoding="utf-8") for path in paths)
    assert "?" not in ascii_fallback("".join(sorted(set(re.findall(r"[^\x00-\x7f]", units + words)))), "ascii")


def test_plain_keeps_ordinary_text() -> None:
    for text in ("void at::native::kernel<4, float>(Array<char*, 3>)", "größer — 学习 ✓", "[a-z]"):
        assert plain(text).plain == text


def test_shorten_keeps_both_ends() -> None:
    name = "a" * 50 + "z" * 50
    short = shorten(name, 21)
    assert len(short) == 21
    assert short.startswith("aaaa")
    assert short.endswith("zzzz")
    assert shorten("short", 21) == "short"
