"""The kept levers as a unified diff of the user's files, for ``git apply``.

A setting is edited only where its call is known with certainty. The edits are made on the text, so that comments and
formatting stay, and on the syntax tree. The edited text has to give the edited tree: nothing else has changed.
"""

from __future__ import annotations

import ast
import copy
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.tune.levers.lever import Setting
from lightning_perf.tune.messages import Site
from lightning_perf.tune.result import Place

OTHERS = "this call may make other loaders, which change as well"


class _UncertainError(Exception):
    """A setting cannot be edited with certainty. The message is a clause that says why."""


@dataclass
class _File:
    """A file with its edits so far.

    Attributes:
        calls: The calls with their arguments before the edits.
        edits: First and last byte of a part of the text, and its new text.
        added: New keyword arguments of calls.
        wrapped: The module that a call of ``fit`` gets, and its new source.
    """

    source: bytes
    tree: ast.Module
    calls: dict[ast.Call, tuple[ast.expr | ast.keyword, ...]]
    edits: list[tuple[int, int, str]] = field(default_factory=list)
    added: dict[ast.Call, dict[str, str]] = field(default_factory=dict)
    wrapped: dict[ast.Call, tuple[ast.expr, str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, source: bytes) -> _File:
        """Parse the text of a file."""
        try:
            source.decode()
            tree = ast.parse(source)
            calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
            return cls(source, tree, {call: (*call.args, *call.keywords) for call in calls})
        except (SyntaxError, ValueError) as error:
            raise _UncertainError(f"the file is not UTF-8 text that this Python can parse ({error})") from error

    def offset(self, line: int, column: int) -> int:
        """Return the number of a byte in the text."""
        return sum(map(len, self.source.split(b"\n")[: line - 1])) + line - 1 + column

    def span(self, node: ast.expr | ast.keyword | ast.stmt) -> tuple[int, int]:
        """Return the first byte of a node, and the one after its last."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.expr) -> str:
        """Return the source of a node."""
        begin, end = self.span(node)
        return self.source[begin:end].decode()

    def edited(self) -> bytes:
        """Return the new text."""
        edits = list(self.edits)
        for call, arguments in self.added.items():
            edits += self._additions(call, arguments)
        edits += [(*self.span(node), text) for node, text in self.wrapped.values()]
        text = self.source
        for begin, end, new in sorted(edits, reverse=True):
            text = text[:begin] + new.encode() + text[end:]
        return text

    def _additions(self, call: ast.Call, arguments: Mapping[str, str]) -> list[tuple[int, int, str]]:
        """Return the edits that add keyword arguments: on lines of their own where the last argument has its own."""
        words = [f"{name}={value}" for name, value in arguments.items()]
        close = self.span(call)[1] - 1
        if not self.calls[call]:
            return [(close, close, ", ".join(words))]
        begin, end = max(map(self.span, self.calls[call]))
        before = self.source[self.source.rfind(b"\n", 0, begin) + 1 : begin]
        gap = self.source[end:close]
        if before.strip() or b"\n" not in gap:
            return [(end, end, "".join(f", {word}" for word in words))]
        trailing = gap.lstrip().startswith(b",")
        ending = "\r\n" if b"\r\n" in gap else "\n"
        at = end + gap.index(b"\n") + 1
        indent = before.decode()
        text = f",{ending}".join(f"{indent}{word}" for word in words) + ("," if trailing else "") + ending
        return [(at, at, text)] if trailing else [(end, end, ","), (at, at, text)]


class Patch(Struct, frozen=True):
    """A unified diff, and for each setting of the kept levers its place."""

    diff: str
    places: tuple[Place, ...]


def make_patch(
    kept: Mapping[str, Sequence[Setting]],
    sites: Mapping[str, Sequence[Site | str]],
    sources: Mapping[str, bytes],
    root: Path,
) -> Patch:
    """Edit the calls that take the settings of the kept levers. A lever is edited as a whole or not at all.

    Args:
        kept: The levers with their settings.
        sites: The calls, by the place of a setting.
        sources: The text of the files, by their paths.
        root: Folder that the paths in the diff are relative to.
    """
    files: dict[str, _File] = {}
    places: list[Place] = []
    for lever, settings in kept.items():
        edited = copy.deepcopy(files)
        found = [place for setting in settings for place in _edit_all(edited, lever, setting, sites, sources, root)]
        if all(place.reason is None for place in found):
            files = edited
        else:
            reason = "it changes the training unless the other lines of the lever are written, too"
            found = [replace(place, reason=place.reason or reason, remark=None) for place in found]
        places += found
    diff = (line for path in sorted(files) for line in _diff(_shown(path, root), sources[path], files[path].edited()))
    return Patch("".join(diff), tuple(places))


def _edit_all(
    files: dict[str, _File],
    lever: str,
    setting: Setting,
    sites: Mapping[str, Sequence[Site | str]],
    sources: Mapping[str, bytes],
    root: Path,
) -> Iterator[Place]:
    """Edit the calls that take a setting, and yield their places."""
    place = Place(lever, str(setting))
    calls = sites.get(setting.place, ())
    if not calls:
        reason = "the call that takes it was not found" if setting.place else "no Python file holds it"
        yield replace(place, reason=reason)
    for site in calls:
        if isinstance(site, str):
            yield replace(place, reason=_made_elsewhere(site, setting))
            continue
        place = replace(place, file=_shown(site.path, root), line_number=site.line)
        try:
            file = files.setdefault(site.path, _File.parse(sources[site.path]))
            _edit(file, site, setting)
            if not _is_exact(file.edited(), file.tree):
                raise _UncertainError("an edit of this line would change more than that")
        except _UncertainError as error:
            yield replace(place, reason=str(error))
        else:
            yield replace(place, remark=OTHERS if site.makes_others else None)


def _is_exact(text: bytes, tree: ast.Module) -> bool:
    """Return whether a text gives a tree, so that the edits changed nothing else."""
    try:
        return ast.dump(ast.parse(text)) == ast.dump(tree)
    except (SyntaxError, ValueError):
        return False


def _shown(path: str, root: Path) -> str:
    return Path(path).relative_to(root).as_posix() if Path(path).is_relative_to(root) else path


def _made_elsewhere(function: str, setting: Setting) -> str:
    if ".cli." in function and setting.place == "Trainer":
        options = " ".join(f"--trainer.{name}={value}" for name, value in setting.arguments.items())
        return f"LightningCLI makes the Trainer: give {options}, or set it in your configuration file"
    return f"{function} makes this call, which is not in your files"


def _edit(file: _File, site: Site, setting: Setting) -> None:
    """Add the edits of one setting. Nothing is added if one of them is not certain."""
    call = _find_call(file, site)
    if setting.place == "module":
        _wrap(file, call, setting.code)
    elif setting.place == "statement":
        _insert(file, call, setting.code)
    else:
        _set_arguments(file, call, site, setting)


def _find_call(file: _File, site: Site) -> ast.Call:
    if site.column is not None:
        exact = (site.line, site.column, site.end_line, site.end_column)
        found = [
            call for call in file.calls if exact == (call.lineno, call.col_offset, call.end_lineno, call.end_col_offset)
        ]
    else:
        found = [call for call in file.calls if call.lineno == site.line and _callee(call) in (site.name, "__init__")]
    if len(found) != 1:
        raise _UncertainError("the call cannot be told apart from others on this line")
    return found[0]


def _callee(call: ast.Call) -> str:
    """Return the last part of the name of the function that is called; empty for another expression."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _set_arguments(file: _File, call: ast.Call, site: Site, setting: Setting) -> None:
    arguments = setting.arguments
    given = _given(call, site, arguments)
    if setting.place == "optimizer":
        if _callee(call) != site.name:
            raise _UncertainError(f"this call makes other optimizers than {site.name}, too")
        if "foreach" in given:
            raise _UncertainError(f"remove foreach={_short(file.text(given['foreach']))}, which excludes fused=True")
    if site.makes_others and "batch_size" in arguments:
        raise _UncertainError("this call may make other loaders, which keep their batch size")
    replaced = {name: given[name] for name in arguments if name in given}
    for name, old in replaced.items():
        if not _is_constant(old):
            raise _UncertainError(f"{name} is the expression {_short(file.text(old))}: change its value")
    for name, value in arguments.items():
        if name not in replaced:
            file.added.setdefault(call, {})[name] = value
            call.keywords.append(ast.keyword(name, _expression(value)))
            continue
        file.edits.append((*file.span(replaced[name]), value))
        _replace(call, replaced[name], _expression(value))


def _given(call: ast.Call, site: Site, wanted: Iterable[str]) -> dict[str | None, ast.expr]:
    """Return the arguments of a call by the names of their parameters."""
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    if None in named or any(isinstance(argument, ast.Starred) for argument in call.args):
        raise _UncertainError(f"the call takes arguments by * or **, which may hold {' and '.join(wanted)}")
    return {**dict(zip(site.parameters, call.args, strict=False)), **named}


def _replace(call: ast.Call, old: ast.expr, new: ast.expr) -> None:
    call.args = [new if argument is old else argument for argument in call.args]
    for keyword in call.keywords:
        keyword.value = new if keyword.value is old else keyword.value


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or (isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant))


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:59]}…"


def _wrap(file: _File, call: ast.Call, code: str) -> None:
    """Change the module that ``fit`` gets."""
    named = [keyword for keyword in call.keywords if keyword.arg == "model"]
    if not named and (not call.args or isinstance(call.args[0], ast.Starred)):
        raise _UncertainError("the module is not an argument of this call")
    module = named[0].value if named else call.args[0]
    original, text = file.wrapped.get(call, (module, file.text(module)))
    simple = isinstance(module, ast.Name | ast.Attribute | ast.Call) or not code.startswith("{}")
    text = code.format(text if simple else f"({text})")
    _import_torch(file)
    file.wrapped[call] = original, text
    _replace(call, module, _expression(text))


def _insert(file: _File, call: ast.Call, code: str) -> None:
    """Write a statement before the one with ``fit``."""
    found = [
        (body, statement)
        for node in ast.walk(file.tree)
        for _, body in ast.iter_fields(node)
        if isinstance(body, list)
        for statement in body
        if isinstance(statement, ast.stmt) and any(inner is call for inner in ast.walk(statement))
    ]
    body, statement = max(found, key=lambda each: file.span(each[1])[0])
    _indent(file, statement)
    _import_torch(file)
    _put(file, body, statement, code)


def _indent(file: _File, statement: ast.stmt) -> tuple[int, str]:
    """Return the first byte of the line of a statement, and its indentation."""
    begin = file.span(statement)[0]
    line = file.source.rfind(b"\n", 0, begin) + 1
    indent = file.source[line:begin].decode()
    if indent.strip():
        raise _UncertainError("its line has other statements, too")
    return line, indent


def _put(file: _File, body: list[ast.stmt], statement: ast.stmt, code: str) -> None:
    """Write a line before a statement."""
    line, indent = _indent(file, statement)
    ending = "\r\n" if b"\r\n" in file.source else "\n"
    file.edits.append((line, line, f"{indent}{code}{ending}"))
    body.insert(body.index(statement), ast.parse(code).body[0])


def _import_torch(file: _File) -> None:
    """Import torch before the first other import, if the file does not import it."""
    imports = [node for node in file.tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = [alias for node in imports if isinstance(node, ast.Import) for alias in node.names]
    if any(alias.name.partition(".")[0] == "torch" and alias.asname in (None, "torch") for alias in names):
        return
    first = next((n for n in imports if not (isinstance(n, ast.ImportFrom) and n.module == "__future__")), None)
    if first is None:
        raise _UncertainError("the file has no import to write 'import torch' next to")
    _put(file, file.tree.body, first, "import torch")


def _diff(name: str, old: bytes, new: bytes) -> Iterator[str]:
    before, after = (re.findall(r"[^\n]*\n|[^\n]+", text.decode()) for text in (old, new))
    for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
