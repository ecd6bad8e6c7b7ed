"""Prose follows the writing rules of CONTRIBUTING.md, as far as docs/style.py can check them."""

from pathlib import Path

import pytest

from tests.support.markdown import DOCS, ROOT, load

STYLE = load(DOCS / "style.py")

LEAST_YOU = 12.0
MOST_NOUN_CLAUSES = 1.0


def parts() -> list[Path]:
    """The checked files and folders, with each folder of the package by itself."""
    found: list[Path] = []
    for name in STYLE.CHECKED:
        path = ROOT / name
        if name == "lightning_perf":
            found += sorted(each for each in path.iterdir() if each.suffix == ".py" or (each / "__init__.py").exists())
        else:
            found.append(path)
    return found


def faults(path: Path) -> list[str]:
    """The sentences below a path that break a rule, each with its place."""
    prose = (piece for file in STYLE.files([path]) for piece in STYLE.prose_of(file))
    return [str(fault) for fault in STYLE.faults(prose)]


def pages() -> list[Path]:
    """The README and the pages of docs."""
    return [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


@pytest.mark.parametrize("path", parts(), ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_follows_the_writing_rules(path: Path) -> None:
    found = faults(path)
    assert not found, "\n".join(["", *found])


def test_pages_are_plain_english_and_talk_to_the_reader() -> None:
    rates = STYLE.rates(piece for page in pages() for piece in STYLE.prose_of(page))
    assert rates.you >= LEAST_YOU
    assert rates.noun_clauses <= MOST_NOUN_CLAUSES
    assert rates.semicolons <= STYLE.MAX_SEMICOLONS


BAD = "The report tells of what the step waited for"
GOOD = "The report names the reason for each wait"
FILES = {
    "page.md": "# A page\n\nGood words.\n\n- {sentence}.\n",
    "table.md": "| a | b |\n|---|---|\n| `x` | {sentence} |\n",
    "docstring.py": 'def wait() -> None:\n    """Wait.\n\n    Args:\n        step: {sentence}.\n    """\n',
    "comment.py": "x = 1\n# {sentence}.\n",
    "message.py": 'raise ValueError("{sentence}.")\n',
    "formatted.py": 'x = 1\nprint(f"{{x}} steps. {sentence}.")\n',
    "string.js": 'const text = "{sentence}.";\n',
    "template.js": "const text = `${{x}} steps: {sentence}.`;\n",
    "comment.js": "// {sentence}.\nconst x = 1;\n",
    "documented.js": "/** {sentence}. */\nconst x = 1;\n",
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_sentence_is_found(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(FILES[name].format(sentence=GOOD))
    assert faults(path) == []
    path.write_text(FILES[name].format(sentence=BAD))
    found = faults(path)
    assert len(found) == 2
    assert "tells of" in found[0]
    assert "as a noun" in found[1]


@pytest.mark.parametrize("name", ["page.md", "docstring.py", "comment.py", "message.py", "string.js", "comment.js"])
def test_a_long_sentence_is_found(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(FILES[name].format(sentence="One " + "very " * STYLE.MAX_WORDS + "long sentence"))
    (found,) = faults(path)
    assert f"at most {STYLE.MAX_WORDS}" in found


def test_code_is_no_prose(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"# A page\n\n```text\n{BAD}.\n```\n\nThe name is `{BAD}`.\n\n<!-- {BAD}. -->\n")
    assert faults(path) == []
    module = tmp_path / "module.py"
    module.write_text(f'"""A module.\n\nExample:\n    >>> print("{BAD}.")\n"""\n')
    assert faults(module) == []


def test_rates_are_per_thousand_words(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("You see " + "many " * 98 + "words; " + "good " * 99 + "your eyes.\n")
    rates = STYLE.rates(STYLE.prose_of(path))
    assert rates.words == 202
    assert rates.you == pytest.approx(2 / 0.202)
    assert rates.semicolons == pytest.approx(1 / 0.202)
    assert rates.long_sentences == 1.0
