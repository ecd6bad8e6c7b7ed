"""What the tests read out of the project's Markdown: fenced blocks, commands, headings, links."""

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RULE_PAGES = tuple(sorted((ROOT / "lightning_perf" / "findings" / "pages").glob("*.md")))
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")), *RULE_PAGES)
"""Everything that is written for readers."""

_BLOCK = re.compile(
    r"(?:^<!-- output of: (?P<command>.+?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
_HEADING = re.compile(r"^#+ (.+?)(?: \{#(?P<id>[\w-]+)\})?$", re.M)
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_OPERATORS = {"|", "||", "&&", ";", "&"}
_ASSIGNMENT = re.compile(r"^(?P<name>[A-Z_][A-Z0-9_]*)=(?P<value>.*)$", re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: The file.
        line: Where the block's text begins.
        language: What stands behind the fence.
        text: What is between the fences.
        output_of: The command whose output it quotes, or None.
    """

    page: Path
    line: int
    language: str
    text: str
    output_of: str | None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, match.start("text")) + 1, match["language"], match["text"], match["command"])
        for match in _BLOCK.finditer(text)
    ]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def commands(script: str) -> Iterator[list[str]]:
    """The simple commands of a shell script, variables filled in, as their words.

    >>> list(commands('T="python -m x"  # how' + chr(10) + 'run --arm "a=$T -v" | head -n 3'))
    [['run', '--arm', 'a=python -m x -v'], ['head', '-n', '3']]
    """
    known = dict(os.environ)
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word not in _OPERATORS:
                words.append(re.sub(r"\$(\w+)", lambda match: known.get(match[1], match[0]), word))
                continue
            while words and (assigned := _ASSIGNMENT.match(words[0])):
                known[assigned["name"]] = assigned["value"]
                words.pop(0)
            if words:
                yield words
            words = []


def console(block: Block) -> str:
    """The script in a block of commands: its lines, or in a ``console`` those behind a dollar sign."""
    if block.language != "console":
        return block.text
    return "\n".join(line.removeprefix("$ ") for line in block.text.splitlines() if line.startswith("$ "))


def inline_code(page: Path) -> list[str]:
    """What stands in single backquotes in a page."""
    return _INLINE.findall(prose(page))


def links(page: Path) -> list[str]:
    """Where a page's links lead."""
    return [match["target"] for match in _LINK.finditer(_INLINE.sub("", prose(page)))]


def anchors(page: Path) -> set[str]:
    """What links may name behind ``#`` in a page: its headings, as GitHub and Python-Markdown spell them."""
    return {match["id"] or _slug(match[1]) for match in _HEADING.finditer(prose(page))}


def _slug(heading: str) -> str:
    """A heading as the end of an address.

    >>> _slug("What it *does*, and `how`")
    'what-it-does-and-how'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def load(script: Path) -> ModuleType:
    """Import a script of the docs, which is in no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{script.stem}", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
