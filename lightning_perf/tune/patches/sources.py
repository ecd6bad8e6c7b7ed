"""Files of a project with edits of their text. A check shows that their meaning changed as intended."""

from __future__ import annotations

import ast
import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from msgspec import Struct

Value: TypeAlias = "bool | int | float | str | None"


class UncertainError(Exception):
    """A setting cannot be edited with certainty. The message is a clause that says why.

    Attributes:
        origins: Arguments that get their values from elsewhere, each with the names that the value may have there.
    """

    def __init__(self, reason: str, origins: Mapping[str, tuple[str, ...]] | None = None) -> None:
        super().__init__(reason)
        self.origins = dict(origins or {})


class Origin(Struct, frozen=True):
    """A place in a file that sets the value of an argument: a key of a YAML file, or a constant in Python.

    Attributes:
        begin: First byte that the new text replaces, and `end` the one after the last. Equal to add a key.
        text: The new text.
        shown: The line for a reader.
        value: The new value.
        keys: The keys that lead to it in a YAML file.
    """

    path: str
    line: int
    begin: int
    end: int
    text: str
    shown: str
    value: Value
    keys: tuple[Any, ...] = ()


@dataclass
class SourceFile:
    """A file with its edits so far.

    Attributes:
        edits: First and last byte of a part of the text, and its new text.
    """

    source: bytes
    edits: list[tuple[int, int, str]] = field(default_factory=list, kw_only=True)

    def all_edits(self) -> list[tuple[int, int, str]]:
        """Return the edits of the text."""
        return self.edits

    def edited(self) -> bytes:
        """Return the new text."""
        text = self.source
        for begin, end, new in sorted(self.all_edits(), reverse=True):
            text = text[:begin] + new.encode() + text[end:]
        return text

    def set_value(self, origin: Origin) -> None:
        """Add the edit of a value."""
        self.edits.append((origin.begin, origin.end, origin.text))

    def is_exact(self) -> bool:
        """Return whether the edits changed nothing else."""
        raise NotImplementedError


@dataclass
class PythonFile(SourceFile):
    """A Python file.

    Attributes:
        tree: The syntax tree that the edited text has to give.
        calls: The calls with their arguments before the edits.
        added: New keyword arguments of calls.
        wrapped: The module that a call of ``fit`` gets, and its new source.
    """

    tree: ast.Module
    calls: dict[ast.Call, tuple[ast.expr | ast.keyword, ...]]
    added: dict[ast.Call, dict[str, str]] = field(default_factory=dict)
    wrapped: dict[ast.Call, tuple[ast.expr, str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, source: bytes) -> PythonFile:
        """Parse the text of a file."""
        try:
            source.decode()
            tree = ast.parse(source)
            calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
            return cls(source, tree, {call: (*call.args, *call.keywords) for call in calls})
        except (SyntaxError, ValueError) as error:
            raise UncertainError(f"the file is not UTF-8 text that this Python can parse ({error})") from error

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

    def all_edits(self) -> list[tuple[int, int, str]]:
        """Return the edits of the text."""
        edits = list(self.edits)
        for call, arguments in self.added.items():
            edits += self._additions(call, arguments)
        return edits + [(*self.span(node), text) for node, text in self.wrapped.values()]

    def set_value(self, origin: Origin) -> None:
        """Add the edit of a constant."""
        super().set_value(origin)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Constant) and self.span(node) == (origin.begin, origin.end):
                node.value = origin.value

    def is_exact(self) -> bool:
        """Return whether the edited text gives the edited tree."""
        try:
            return ast.dump(ast.parse(self.edited())) == ast.dump(self.tree)
        except (SyntaxError, ValueError):
            return False

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


@dataclass
class YamlFile(SourceFile):
    """A YAML file.

    Attributes:
        root: Its root node.
        data: Its content, with the edits.
    """

    root: Any
    data: Any

    @classmethod
    def parse(cls, source: bytes) -> YamlFile:
        """Parse the text of a file."""
        import yaml  # Lightning requires it

        try:
            return cls(source, yaml.compose(source.decode(), yaml.SafeLoader), yaml.safe_load(source))
        except (yaml.YAMLError, ValueError) as error:
            raise UncertainError("the file is not one YAML document in UTF-8, without tags") from error

    def offset(self, character: int) -> int:
        """Return the number of a byte in the text."""
        return len(self.source.decode()[:character].encode())

    def set_value(self, origin: Origin) -> None:
        """Add the edit of a value, or a new key."""
        super().set_value(origin)
        self.data = copy.deepcopy(self.data)  # not in place: aliases are one object
        parent = self.data
        for key in origin.keys[:-1]:
            parent[key] = copy.copy(parent[key])
            parent = parent[key]
        parent[origin.keys[-1]] = origin.value

    def is_exact(self) -> bool:
        """Return whether the edited text has the edited content."""
        try:
            return bool(YamlFile.parse(self.edited()).data == self.data)
        except UncertainError:
            return False


def yaml_text(value: Value, near: str = "") -> str:
    """Return a value as YAML in the style of a text near it.

    Example:
        >>> yaml_text("bf16-mixed"), yaml_text("x", "'32-true'"), yaml_text(True, "False"), yaml_text("16")
        ('bf16-mixed', "'x'", 'True', '"16"')
    """
    import yaml

    if isinstance(value, str):
        quote = near[0] if near[:1] in ("'", '"') else "" if yaml.safe_load(value) == value else '"'
        return f"{quote}{value}{quote}"
    return str(value) if re.search(r"\b(True|False)\b", near) else json.dumps(value)


def callee(call: ast.Call) -> str:
    """Return the last part of the name of the function that is called; empty for another expression."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
