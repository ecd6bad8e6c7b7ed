"""mkdocs: the README is the site's first page, and the benchmarks' results are pages, without a second copy of either."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/lightning-perf/lightning_perf/blob/main"
RESULTS = "benchmarks/results"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside ``docs/``."""
    readme = re.sub(r"\]\(docs/", "](", (ROOT / "README.md").read_text(encoding="utf-8"))
    files.append(File.generated(config, "index.md", content=_outside(readme.replace('src="docs/', 'src="'), "")))
    for path in sorted((ROOT / RESULTS).rglob("*")):
        if path.suffix not in {".md", ".png", ".svg"}:
            continue
        name = f"results/{path.relative_to(ROOT / RESULTS).as_posix()}"
        if path.suffix == ".md":
            files.append(File.generated(config, name, content=path.read_text(encoding="utf-8")))
        else:
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links to the results at their pages, and links to other files of the repository at the repository."""
    return _outside(markdown, r"\.\./")


def _outside(markdown: str, prefix: str) -> str:
    markdown = re.sub(rf"\]\({prefix}{RESULTS}/", "](results/", markdown)
    return re.sub(rf"\]\({prefix}((?:{RESULTS}|[A-Z]+\.md)[^)]*)\)", rf"]({REPOSITORY}/\1)", markdown)
