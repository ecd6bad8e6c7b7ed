"""Finds where the value of an argument may come from: a key of a YAML or JSON file, or a constant elsewhere in Python.

Names only suggest these places. A run of an edited copy of the project shows whether the value arrives.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lightning_perf.tune.patches.sources import (
    Origin,
    PythonFile,
    SourceFile,
    UncertainError,
    Value,
    YamlFile,
    callee,
    yaml_text,
)

_NOT_PARAMETERS = {"_target_", "_convert_", "_partial_", "_recursive_", "defaults"}
"""Keys of Hydra's next to the arguments of an object."""


def parse_file(path: str, source: bytes) -> SourceFile:
    """Parse a file by its name."""
    return (YamlFile if path.endswith((".yaml", ".yml", ".json")) else PythonFile).parse(source)


def find_origins(
    names: Sequence[str], old: Value, new: Value, parameters: Sequence[Sequence[str]], sources: Mapping[str, bytes]
) -> list[Origin]:
    """Return the places that may set a value, the likeliest one first.

    Args:
        names: Names that the value may have.
        old: The value that the call gets now.
        new: The value that it should get.
        parameters: Parameters of the classes that may pass the value on. A YAML mapping with only such keys can take
            another one.
        sources: The files.
    """
    found: list[tuple[float, int, Origin]] = []
    for path, source in sources.items():
        with suppress(UncertainError, RecursionError):  # YAML may contain itself
            file = parse_file(path, source)
            for number, name in enumerate(dict.fromkeys(names)):
                search = _in_yaml if isinstance(file, YamlFile) else _in_python
                found += ((rank, number, each) for rank, each in search(file, path, name, old, new, parameters))
    return [origin for *_, origin in sorted(found, key=lambda each: each[:2])]


def _in_yaml(
    file: Any, path: str, name: str, old: Value, new: Value, parameters: Sequence[Sequence[str]]
) -> Iterator[tuple[float, Origin]]:
    """Yield keys with the value, and mappings that can take the key, each with its rank."""
    for keys, mapping, data in _mappings(file.root, file.data):
        given = data.keys() - _NOT_PARAMETERS
        fits = any(given and given <= set(each) and name in each for each in parameters)
        node = next((node for key, node in mapping.value if key.value == name), None)
        if node is None:
            if fits and (origin := _added(file, path, (*keys, name), mapping, new)) is not None:
                yield 5 + 1 / len(given), origin
        elif isinstance(node.value, str) and _same(data.get(name), old):
            begin, end = file.offset(node.start_mark.index), file.offset(node.end_mark.index)
            text = _text(path, new, file.source[begin:end].decode())
            line = node.start_mark.line + 1
            inserted = text if begin < end else f" {text}"
            yield 1 - fits, Origin(path, line, begin, end, inserted, f"{name}: {text}", new, (*keys, name))


def _mappings(node: Any, data: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yield the mappings of a YAML document: the keys that lead to them, their nodes, and their content."""
    if isinstance(data, dict):
        yield keys, node, data
        for key, value in node.value:
            if key.value in data:  # else the key is no text, or merges another mapping
                yield from _mappings(value, data[key.value], (*keys, key.value))
    elif isinstance(data, list):
        for index, value in enumerate(node.value):
            yield from _mappings(value, data[index], (*keys, index))


def _added(file: YamlFile, path: str, keys: tuple[Any, ...], mapping: Any, new: Value) -> Origin | None:
    """Return the edit that adds a key after the last simple entry of a mapping."""
    source = file.source.decode()
    simple = [(key, value) for key, value in mapping.value if isinstance(value.value, str)]
    if not simple:
        return None
    key, value = simple[-1]
    name = json.dumps(keys[-1]) if path.endswith(".json") else keys[-1]
    text = f"{name}: {_text(path, new, source)}"
    line = value.end_mark.line + 1
    if mapping.flow_style:
        gap = source[max(source.rfind("\n", 0, key.start_mark.index), 0) : key.start_mark.index]
        at, added = value.end_mark.index, f",{' ' if gap.strip() else gap}{text}"
    elif (end := source.find("\n", max(key.end_mark.index, value.end_mark.index - 1))) < 0:
        at, added = len(source), f"\n{' ' * key.start_mark.column}{text}"
    else:
        ending = "\r\n" if source[end - 1] == "\r" else "\n"
        at, added = end + 1, f"{' ' * key.start_mark.column}{text}{ending}"
    begin = file.offset(at)
    return Origin(path, line, begin, begin, added, text, new, keys)


def _text(path: str, value: Value, near: str) -> str:
    return json.dumps(value) if path.endswith(".json") else yaml_text(value, near)


def _in_python(
    file: Any, path: str, name: str, old: Value, new: Value, _: Sequence[Sequence[str]]
) -> Iterator[tuple[float, Origin]]:
    """Yield constants that are bound to the name, each with its rank."""
    text = f'"{new}"' if isinstance(new, str) else repr(new)
    for node in ast.walk(file.tree):
        for rank, constant in _bound(node, name):
            if isinstance(constant, ast.Constant) and _same(constant.value, old):
                begin, end = file.span(constant)
                yield rank, Origin(path, constant.lineno, begin, end, text, f"{name}={text}", new)


def _bound(node: ast.AST, name: str) -> Iterator[tuple[float, ast.expr | None]]:
    """Yield the values that a node binds to a name, each with its rank."""
    if isinstance(node, ast.Call) and callee(node) not in ("DataLoader", "Trainer"):  # they are not asked for their own
        words = [str(word.value) for word in node.args if isinstance(word, ast.Constant)]
        options = [word.lstrip("-").replace("-", "_") for word in words]
        wanted = "default" if name in options else name
        yield from ((2, keyword.value) for keyword in node.keywords if keyword.arg == wanted)
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        yield from ((3, value) for key, value in pairs if isinstance(key, ast.Constant) and key.value == name)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (
            (4, node.value) for target in targets if name in (getattr(target, "id", 0), getattr(target, "attr", 0))
        )
    elif isinstance(node, ast.arguments):
        positional = zip(reversed([*node.posonlyargs, *node.args]), reversed(node.defaults), strict=False)
        keywords = zip(node.kwonlyargs, node.kw_defaults, strict=True)
        yield from ((6, value) for argument, value in (*positional, *keywords) if argument.arg == name)


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other
