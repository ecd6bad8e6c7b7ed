"""Write the page's definitions from ``docs/definitions.md``: ``python docs/definitions_json.py``.

The page shows these kinds of entries:

- a section, with its text before the first list, table or heading;
- a row of the table of categories;
- a list item or paragraph that starts with its term in bold or italics.

The key of an entry is its term in lower case, joined by hyphens. A term that occurs twice has both texts.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

DOCS = Path(__file__).parent
TARGET = DOCS.parent / "lightning_perf" / "page" / "assets" / "text" / "definitions.json"

MAX_TERM_WORDS = 4
MAX_PARAGRAPHS = 3

_ITEM = re.compile(r"^(?:- )?(?P<mark>\*{1,2})`?(?P<term>[^*`]+)`?(?P=mark)(?P<rest>.*)$", re.DOTALL)
_ROW = re.compile(r"^\| `(?P<term>\w+)` \| (?P<text>[^|]+) \|$")

Entry = dict[str, object]


def definitions(markdown: str) -> dict[str, Entry]:
    """Return the entries of a page of definitions: ``{key: {title, text: [paragraph], section}}``."""
    entries: dict[str, Entry] = {}

    def add(title: str, text: str, section: str) -> None:
        entry = entries.setdefault(_key(title), {"title": title, "text": [], "section": section})
        paragraphs = entry["text"]
        assert isinstance(paragraphs, list)
        paragraphs.append(_plain(text))

    for part in re.split(r"^## ", markdown, flags=re.MULTILINE)[1:]:
        section, _, body = part.partition("\n")
        introduced = 0
        heading_only = True
        for block in _blocks(body):
            item = _ITEM.match(block)
            row = _ROW.match(block)
            if row and "category" in body.split("\n|---")[0]:
                add(row["term"], row["text"], section)
            if item and len(item["term"].split()) <= MAX_TERM_WORDS:
                rest = item["rest"]
                add(item["term"], rest[1:] if rest.startswith(":") else f"{item['term']}{rest}", section)
            if block.startswith(("- ", "|", "#", "1.")):
                heading_only = False
            elif heading_only and not item and introduced < MAX_PARAGRAPHS:
                add(section, block, section)
                introduced += 1
    return entries


def _blocks(body: str) -> list[str]:
    """Split a section into paragraphs, list items and table rows, each on one line."""
    blocks: list[str] = []
    fresh = True
    for line in body.splitlines():
        if not line.strip():
            fresh = True
        elif fresh or line.startswith(("- ", "|", "#")) or re.match(r"\d+\. ", line):
            blocks.append(line.strip())
            fresh = False
        else:
            blocks[-1] += f" {line.strip()}"
    return blocks


def _key(title: str) -> str:
    return re.sub(r"[^\w]+", "-", title.lower()).strip("-")


def _plain(text: str) -> str:
    """Remove links and emphasis; `code` keeps its backticks."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"(\*{1,2})([^*]+)\1", r"\2", text).strip()
    return text[0].upper() + text[1:] if text else text


def render() -> str:
    """Return the text of the JSON file."""
    return json.dumps(definitions((DOCS / "definitions.md").read_text()), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render())
    print(f"wrote {TARGET}")
