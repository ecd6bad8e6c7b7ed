"""Links lead somewhere, also where README and docs are read in the repository."""

import re
from pathlib import Path

import pytest

from tests.support.markdown import PAGES, ROOT, anchors, links

RESULTS = sorted((ROOT / "benchmarks" / "results").rglob("*.md"))
REPOSITORY = "https://github.com/lightning-perf/lightning_perf/"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", *RESULTS], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            own = re.fullmatch(rf"{REPOSITORY}(?:blob|tree)/main/(.+)", link)
            assert own is None or (ROOT / own[1]).exists(), link
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def test_a_broken_link_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title\n\n[there](#a-title), [nowhere](gone.md), `[code](of.md)`\n")
    assert links(page) == ["#a-title", "gone.md"]
    with pytest.raises(AssertionError, match=r"gone\.md"):
        test_links_lead_somewhere(page)
    page.write_text("# A title\n\n[nowhere](#another-title)\n")
    with pytest.raises(AssertionError, match="another-title"):
        test_links_lead_somewhere(page)
