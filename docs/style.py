"""Check the prose of pages, docstrings, comments and messages against the writing rules of CONTRIBUTING.md.

Usage:
    python docs/style.py                     # everything that `make test` checks
    python docs/style.py docs/tuning.md lightning_perf/tune
    python docs/style.py --rates docs        # only the counts per 1,000 words
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECKED = ("README.md", "CONTRIBUTING.md", "docs", "lightning_perf", "recipes", "benchmarks")

MAX_WORDS = 30
"""Words in a sentence. The aim is 25; a list of names may need a few more."""

MAX_SEMICOLONS = 2.0
"""Semicolons per 1,000 words of a page."""

_AMOUNT = "ms|µs|ns|seconds?|minutes?|%|times|bytes|[KMGT]i?B|once|twice|tokens|batches|samples|kernels|launches"
BANNED: tuple[tuple[str, str], ...] = (
    (r"\b(?:is|are|was|were|been|being) told\b|\btells? of\b|\btold (?:that|of|whether)\b", "say *reports*, *shows*"),
    (r"\banew\b", "say *again*"),
    (r"\bbesides\b", "say *also*, *and*, or *next to*"),
    (r"\bstands? (?:beside|besides|for itself|in|with|under|above|below|there|here|at|between|alone)\b", "say *is*"),
    (r"\b(?:goes|go|went|going) on\b", "say *continues*"),
    (r"\bin turns\b", "say *alternating with*"),
    (r"\bis none\b|\bthere is none\b|\bare none\b", "say *no …* or *missing*"),
    (r"\bthat there (?:is|are)\b|\bthere is not\b", "say which one exists"),
    (r"\b(?:at|since|from) the begin\b", "say *start*"),
    (r"\bwhom(?:ever|soever)\b|\bby whom\b", "name the actor"),
    (r"\bno number\b", "say *NaN or infinite*, *missing*"),
    (r"\bat hand\b", "say *available*"),
    (r"\bmend(?:s|ed|ing)?\b", "say *fix*"),
    (r"\b(?:as it is|as they are)\b(?= *[.,;)])", "say *unchanged*"),
    (r"\b(?:wins?|won) (?:\d|a (?:few|lot)|nothing|something|time)", "say *saves*"),
    (r"\bthat which\b|\bthose which\b", "name it"),
    (r"\b(?:whose|of which|of whom)\b", "use two sentences, or *with*"),
    (
        rf"\b(?:{_AMOUNT}) an? (?:step|epoch|run|rank|batch|block|second|minute|day|layer|fit|process|core|call)\b",
        "say *per …*",
    ),
    (r"\ban? (?:process|thread|worker|file|row|line) an? [a-z]+\b", "say *one … per …*"),
)  # fmt: skip
_BANNED = tuple((re.compile(pattern, re.IGNORECASE), advice) for pattern, advice in BANNED)
NOUN_CLAUSE = re.compile(
    r"\b[Ww]hat(?! to\b)(?! (?:happens|changed|if)\b)\b(?=[ ,.])|\b[Tt]hat which\b|\b[Oo]f which\b|\b[Ww]hose\b"
)

_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”)*_]*\s+(?=[\"'“(*_`]*[A-Z0-9`])")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|vs|etc|cf|approx|Fig|No)\.$")
CODE = "code"
"""Stands for a piece of code in a sentence."""


@dataclass(frozen=True)
class Prose:
    """A paragraph that a person reads.

    Attributes:
        path: Its file.
        line: Where it begins, from 1.
        text: The paragraph on one line, code replaced by a word.
        in_table: A cell of a table, which may be a list of short phrases.
    """

    path: Path
    line: int
    text: str
    in_table: bool = False

    def sentences(self) -> Iterator[str]:
        """Split the paragraph."""
        begun = ""
        for part in _SENTENCE_END.split(self.text):
            begun = f"{begun} {part}".strip()
            if not _ABBREVIATION.search(begun):
                yield begun
                begun = ""
        if begun:
            yield begun


@dataclass(frozen=True)
class Fault:
    """A sentence that breaks a rule."""

    path: Path
    line: int
    rule: str
    sentence: str

    def __str__(self) -> str:
        shown = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{shown}:{self.line}: {self.rule}\n    {self.sentence}"


@dataclass(frozen=True)
class Rates:
    """Counts per 1,000 words, and the share of long sentences."""

    words: int
    you: float
    noun_clauses: float
    semicolons: float
    long_sentences: float


def prose_of(path: Path) -> Iterator[Prose]:
    """Yield the prose of a Markdown page, a Python module or a script of the page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from _of_markdown(path, text)
    elif path.suffix == ".py":
        yield from _of_python(path, text)
    elif path.suffix == ".js":
        yield from _of_javascript(path, text)


def faults(prose: Iterable[Prose]) -> Iterator[Fault]:
    """Yield the sentences that are too long or use words that we avoid."""
    for piece in prose:
        for sentence in piece.sentences():
            count = len(sentence.split())
            if count > MAX_WORDS and not piece.in_table:
                yield Fault(piece.path, piece.line, f"{count} words: at most {MAX_WORDS}", sentence)
            for pattern, advice in _BANNED:
                if found := pattern.search(sentence):
                    yield Fault(piece.path, piece.line, f"“{found[0]}”: {advice}", sentence)
            if not sentence.endswith("?") and (clause := NOUN_CLAUSE.search(sentence)) and len(sentence.split()) > 3:
                yield Fault(piece.path, piece.line, f"“{clause[0]}” as a noun: name the thing", sentence)


def rates(prose: Iterable[Prose]) -> Rates:
    """Count words, direct address, noun clauses, semicolons and sentences of more than 30 words."""
    words = you = clauses = semicolons = sentences = long = 0
    for piece in prose:
        words += len(_WORD.findall(piece.text))
        you += len(re.findall(r"\b(?:you|your|yours|yourself)\b", piece.text, re.IGNORECASE))
        clauses += len(NOUN_CLAUSE.findall(piece.text))
        semicolons += piece.text.count(";")
        if not piece.in_table:
            counts = [len(sentence.split()) for sentence in piece.sentences()]
            sentences += len(counts)
            long += sum(count > MAX_WORDS for count in counts)
    thousand = max(words, 1) / 1000
    return Rates(words, you / thousand, clauses / thousand, semicolons / thousand, long / max(sentences, 1))


def files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files to check below the given ones."""
    for path in paths:
        if path.is_dir():
            yield from sorted(
                file for file in path.rglob("*") if file.suffix in {".md", ".py", ".js"} and "results" not in file.parts
            )
        elif path.exists():
            yield path
        else:
            raise FileNotFoundError(f"{path}: no such file or folder")


def _of_markdown(path: Path, text: str) -> Iterator[Prose]:
    text = re.sub(r"<!--.*?-->", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    fenced = False
    begin, lines = 0, list[str]()
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            line = ""
        stripped = "" if fenced else line.strip()
        is_item = re.match(r"(?:[-*+]|\d+\.)\s+|#+\s|>|\|", stripped)
        if lines and (not stripped or is_item):
            yield from _markdown_piece(path, begin, " ".join(lines))
            lines = []
        if stripped:
            if not lines:
                begin = number
            lines.append(stripped)


def _markdown_piece(path: Path, line: int, text: str) -> Iterator[Prose]:
    if text.startswith("|"):
        for cell in text.strip("|").split("|"):
            if len(cell.split()) > 2:
                yield Prose(path, line, _without_markup(cell), in_table=True)
        return
    yield Prose(path, line, _without_markup(re.sub(r"^(?:[-*+]|\d+\.|#+|>)\s+", "", text)))


def _without_markup(text: str) -> str:
    text = re.sub(r"``.+?``|`[^`]+`", CODE, text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>]+>|\{[^}]*\}", "", text)
    return " ".join(text.replace("*", "").split())


def _of_python(path: Path, text: str) -> Iterator[Prose]:
    tree = ast.parse(text)
    docstrings = set[int]()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(docstring)) as constant):
                    docstrings.add(id(constant))
                    yield from _of_docstring(path, statement.lineno, docstring)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        message = ""
        if isinstance(node, ast.JoinedStr):
            message = "".join(str(p.value) if isinstance(p, ast.Constant) else CODE for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | inside:
            message = node.value
        if len(message.split()) > 3 and not re.search(r"[<{\\]|\n\s", message):
            yield Prose(path, getattr(node, "lineno", 1), _without_markup(message))
    yield from _of_comments(path, text)


def _of_docstring(path: Path, line: int, text: str) -> Iterator[Prose]:
    """Paragraphs, arguments and list items; doctests and indented blocks are code."""
    begin, lines = line, list[str]()
    code = False
    for offset, raw in enumerate([*text.expandtabs().split("\n"), ""]):
        stripped = raw.strip()
        code = stripped.startswith((">>>", "```")) or (code and bool(stripped))
        entry = re.match(r"(?:\*{0,2}\w+(?: \([^)]*\))?: +|[-*] +)(?=\S)", stripped) if offset else None
        heading = re.fullmatch(r"(?:Args|Returns|Raises|Attributes|Example|Examples|Yields|Note):", stripped)
        if lines and (not stripped or entry or heading or code):
            yield Prose(path, begin, _without_markup(" ".join(lines)))
            lines = []
        if stripped and not code and not heading:
            if not lines:
                begin = line + offset
            lines.append(stripped[entry.end() :] if entry else stripped)


def _of_comments(path: Path, text: str) -> Iterator[Prose]:
    begin, last, lines = 0, -1, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        words = re.sub(r"^#+!?\s*|\s*#\s*(?:noqa|type:|fmt:).*$", "", token.string)
        if re.match(r"(?:noqa|type:|fmt:|pragma|!)", words):
            continue
        if lines and token.start[0] != last + 1:
            yield Prose(path, begin, _without_markup(" ".join(lines)))
            lines = []
        if not lines:
            begin = token.start[0]
        lines.append(words)
        last = token.start[0]
    if lines:
        yield Prose(path, begin, _without_markup(" ".join(lines)))


def _of_javascript(path: Path, text: str) -> Iterator[Prose]:
    for block in re.finditer(r"/\*\*?(.*?)\*/|((?:^[ \t]*//[^\n]*\n)+)", text, flags=re.DOTALL | re.MULTILINE):
        words = re.sub(r"^\s*(?://+|\*)\s?", "", block[1] or block[2], flags=re.MULTILINE)
        line = text.count("\n", 0, block.start()) + 1
        for paragraph in re.split(r"\n\s*\n|\n(?=@)", words):
            yield Prose(
                path, line, _without_markup(" ".join(re.sub(r"@\w+ *(?:\{.*?\})? *\w*", "", paragraph).split()))
            )
    for string in re.finditer(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`', text):
        words = re.sub(r"\$\{[^}]*\}", CODE, string[1] or string[2] or "")
        if len(words.split()) > 3 and not re.search(r"[<>{}]|=>", words):
            yield Prose(path, text.count("\n", 0, string.start()) + 1, " ".join(words.split()))


def main() -> int:
    """Print the faults, or the rates; the exit code is 1 where there are faults."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders (default: all that is checked)")
    parser.add_argument("--rates", action="store_true", help="print counts per 1,000 words for each file instead")
    options = parser.parse_args()
    chosen = list(files(options.paths or [ROOT / name for name in CHECKED]))
    if options.rates:
        print("  words   you  noun clauses  semicolons  long sentences")
        for name, group in [*((str(path), [path]) for path in chosen), ("all", chosen)]:
            found = rates(piece for path in group for piece in prose_of(path))
            print(
                f"{found.words:7,} {found.you:5.1f} {found.noun_clauses:13.1f} {found.semicolons:11.1f} "
                f"{found.long_sentences:14.0%}  {name}"
            )
        return 0
    found_faults = list(faults(piece for path in chosen for piece in prose_of(path)))
    for fault in found_faults:
        print(fault)
    print(f"{len(found_faults)} sentences to rewrite in {len(chosen)} files", file=sys.stderr)
    return 1 if found_faults else 0


if __name__ == "__main__":
    sys.exit(main())
