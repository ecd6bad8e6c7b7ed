"""README, quickstart and tutorial quote the reports of the recordings that the demo shows."""

import re
from types import ModuleType

import pytest

from tests.support.markdown import DOCS, PAGES, ROOT, Block, blocks, load

DEMO = re.compile(r"lightning_perf/demo/recordings/|lightning-perf demo (?!--help)")
QUOTED = [block for page in PAGES for block in blocks(page) if DEMO.search(str(block.output_of))]


@pytest.fixture(scope="module")
def refresh() -> ModuleType:
    return load(DOCS / "refresh.py")


@pytest.mark.parametrize("block", QUOTED, ids=str)
def test_quoted_reports_are_todays(block: Block, refresh: ModuleType) -> None:
    assert block.text == refresh.output(block.output_of), "run: make readme"


def test_the_front_pages_quote_the_demo() -> None:
    assert {"README.md", "quickstart.md", "tutorial.md"} <= {block.page.name for block in QUOTED}


def test_make_readme_refreshes_every_page_that_quotes_the_demo() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (line,) = [line for line in makefile.splitlines() if "docs/refresh.py" in line]
    assert {block.page.relative_to(ROOT).as_posix() for block in QUOTED} <= set(line.split())
