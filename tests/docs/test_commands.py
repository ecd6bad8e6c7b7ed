"""The commands of README and docs: options that exist, and what is cheap is run."""

import argparse
import importlib
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lightning_perf import cli
from recipes.signlang import cli as signlang
from recipes.tinylm import cli as tinylm
from tests.conftest import CORPUS_VARIABLE
from tests.support.installed import needs_installation
from tests.support.markdown import DOCS, PAGES, ROOT, Block, blocks, commands, console, inline_code, load

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHELL_LANGUAGES = {"console", "bash", "sh"}
ALL = [block for page in PAGES for block in blocks(page)]
SCRIPTS = [block for block in ALL if block.language in SHELL_LANGUAGES]
QUOTED = [block for block in ALL if block.output_of is not None]
HELP = [block for block in QUOTED if (block.output_of or "").endswith(" --help")]


def cheap(block: Block) -> list[list[str]]:
    """The commands of a block that take a moment, given the files that they name."""
    found = commands(console(block))
    known = (words for words in found if not any(word.startswith("$") for word in words))  # $LIGHTNING_PERF_CORPUS
    quick = (words for words in known if not {"--probe", "--schema"} & set(words))
    return [
        words for words in quick if words[0] == "lightning-perf" and words[1] in {"analyze", "compare", "demo", "diff"}
    ]


OTHER_PROGRAMS = {"cp", "export", "git", "kill", "nvidia-smi", "pip", "sed", "tensorboard", "touch"}
"""What the docs use besides; `pip`'s extras are looked up."""

LAUNCHERS = {"srun", "torchrun"}
"""They start several processes of this package's command."""

OTHER_OPTIONS = {"--dataloader_num_workers", "--fp16", "--init", "--int8", "--logdir", "--logdir_spec"}
"""Options in the prose that belong to git, TensorBoard, TensorRT and transformers."""


class Parsed(Exception):  # noqa: N818  # nothing went wrong
    """Thrown instead of running a command whose options were understood."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


@pytest.fixture
def only_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(self: argparse.ArgumentParser, *given: Any) -> None:
        parse(self, *given)
        raise Parsed(self)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)


def check(words: list[str]) -> None:
    """Fail unless a command can be understood; it is not run."""
    program, *arguments = words
    if program == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
        assert set(arguments) <= set(targets)
    elif program == "lightning-perf" or (program == "python" and arguments[0] == "-m" and "." in arguments[1]):
        with pytest.raises((Parsed, SystemExit)) as stopped:
            entry_point(words)()
        if isinstance(stopped.value, SystemExit):
            assert stopped.value.code == 0, f"{shlex.join(words)} is not understood"  # 0: --help
        for nested in filter(re.compile(r"\w+=(python -m|lightning-perf) ").match, arguments):
            check(shlex.split(re.sub(r"\{(seed|block|dir)\}", "0", nested.partition("=")[2])))
    elif program in LAUNCHERS:
        check(["lightning-perf", *arguments[arguments.index("lightning_perf") + 1 :]])
    elif program == "python" and arguments[0] != "-m":
        assert (ROOT / arguments[0]).is_file() or arguments[0] == "train.py"
    else:
        assert program in OTHER_PROGRAMS or words[:3] == ["python", "-m", "pip"], f"{program} is not known here"
        extras = [name for word in words for found in re.findall(r"\[([\w,]+)\]", word) for name in found.split(",")]
        assert set(extras) <= declared_extras() | {"python"}


def entry_point(words: list[str]) -> Callable[[], object]:
    """What a command would call."""
    if words[0] == "lightning-perf":
        return lambda: cli.main(words[1:])
    if words[2] == "recipes.signlang":
        return lambda: signlang.main(words[3:])
    if words[2] == "recipes.tinylm":
        return lambda: tinylm.main(words[3:])
    module = importlib.import_module(words[2])

    def main() -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [words[2], *words[3:]])
            return module.main()

    return main


def declared_extras() -> set[str]:
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


@pytest.mark.parametrize("block", SCRIPTS, ids=str)
@pytest.mark.usefixtures("only_parse")
def test_commands_are_understood(block: Block) -> None:
    found = list(commands(console(block)))
    assert found
    for words in found:
        check(words)


@pytest.mark.parametrize("block", QUOTED, ids=str)
@pytest.mark.usefixtures("only_parse")
def test_commands_of_quoted_output_are_understood(block: Block) -> None:
    assert block.output_of is not None
    for words in commands(block.output_of):
        check(words)


@pytest.mark.usefixtures("only_parse")
def test_a_renamed_option_would_be_noticed() -> None:
    with pytest.raises(AssertionError, match="not understood"):
        check(["lightning-perf", "analyze", "x", "--no-such-option"])
    with pytest.raises(AssertionError, match="not understood"):
        check(["lightning-perf", "study", "x", "--arm", "a=python -m recipes.signlang --no-such-option"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_in_the_prose_exist(page: Path, every_option: set[str]) -> None:
    named = {word for code in inline_code(page) for word in re.findall(r"(?<!\S)--[a-z][\w-]+", code)}
    assert named <= OTHER_OPTIONS | every_option


@pytest.fixture(scope="module")
def every_option() -> set[str]:
    def stop(self: argparse.ArgumentParser, *_: object) -> None:
        raise Parsed(self)

    benchmarks = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "benchmarks").rglob("*.py")
        if path.parent.name not in ("compatibility", "programs") and "parse_args" in path.read_text()
    ]
    found: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        for module in ("recipes.signlang", "recipes.tinylm", *benchmarks):
            with pytest.raises(Parsed) as parsed:
                entry_point(["python", "-m", module])()
            found.update(options(parsed.value.parser))
        with pytest.raises(Parsed) as parsed:
            cli.main(["--help"])
    return found | set(options(parsed.value.parser))


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from options(sub)


@pytest.mark.parametrize("block", [block for block in SCRIPTS if cheap(block)], ids=str)
def test_cheap_commands_run(
    block: Block, sandbox: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sandbox)
    for words in cheap(block):
        allowed = {0, 1, 4} if words[1] == "compare" or "--fail-on" in words else {0}  # 1: failed, 4: inconclusive
        code = entry_point(words)()
        printed = capsys.readouterr()
        assert code in allowed, f"{shlex.join(words)}\n{printed.out}{printed.err}"
        assert printed.out


@pytest.mark.parametrize("block", HELP, ids=str)
def test_quoted_help_is_todays(
    block: Block, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    assert block.output_of is not None
    (words,) = commands(block.output_of)
    with pytest.raises(SystemExit):
        entry_point(words)()
    # Pythons differ in where they break lines.
    same = "".join(block.text.split()) == "".join(capsys.readouterr().out.split())
    assert same, f"run: python docs/refresh.py docs/{block.page.name}"


@pytest.fixture(scope="module")
def refresh() -> ModuleType:
    return load(DOCS / "refresh.py")


@needs_installation
@pytest.mark.corpus
@pytest.mark.parametrize("block", [block for block in QUOTED if f"${CORPUS_VARIABLE}" in str(block.output_of)], ids=str)
def test_quoted_reports_are_todays(block: Block, corpus: Path, refresh: ModuleType) -> None:
    assert block.text == refresh.output(block.output_of), f"run: python docs/refresh.py {block.page.relative_to(ROOT)}"
