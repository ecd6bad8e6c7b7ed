"""The kept levers as a unified diff of the user's files, for ``git apply``.

A setting is edited only where its call is known with certainty. The edits are made on the text, so that comments and
formatting stay, and on the syntax tree. The edited text has to give the edited tree: nothing else has changed.
"""

from __future__ import annotations

import ast
import copy
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from lightning_perf.tune.levers.lever import Setting
from lightning_perf.tune.messages import Arguments, Scouted, Site
from lightning_perf.tune.patches.origins import find_origins, parse_file
from lightning_perf.tune.patches.sources import Origin, PythonFile, SourceFile, UncertainError, Value, callee
from lightning_perf.tune.result import Place

OTHERS = "this call may make other loaders, which change as well"
READERS = "checked in a copy of your project; other code may read this value, too"

_OPTIONAL = str(Setting("DataLoader", {"persistent_workers": "True"}))
"""A line that the other lines of its lever do not need."""

MOST_RUNS = 4
"""Most runs of edited copies that search for the origins of values."""


Argument: TypeAlias = tuple[str, str]
"""The place of a `Setting`, and the name of an argument."""


class Patch(Struct, frozen=True):
    """A unified diff, and for each setting of the kept levers its place.

    Attributes:
        texts: The new texts of the files.
        open: Arguments that get their values from elsewhere: the new value, and the names that it may have there.
    """

    diff: str
    places: tuple[Place, ...]
    texts: dict[str, bytes] = {}
    open: dict[Argument, tuple[Value, tuple[str, ...]]] = {}


def make_patch(
    kept: Mapping[str, Sequence[Setting]],
    sites: Mapping[str, Sequence[Site | str]],
    sources: Mapping[str, bytes],
    root: Path,
    origins: Mapping[Argument, Origin | None] | None = None,
) -> Patch:
    """Edit the calls that take the settings of the kept levers. A lever is edited as a whole or not at all.

    Args:
        kept: The levers with their settings.
        sites: The calls, by the place of a setting.
        sources: The text of the files, by their paths.
        root: Folder that the paths in the diff are relative to.
        origins: Places outside of the calls that set their arguments; None for those that follow from the others.
    """
    editor = _Editor(sites, sources, root, origins or {})
    places: list[Place] = []
    for lever, settings in kept.items():
        files = copy.deepcopy(editor.files)
        found = [place for setting in settings for place in editor.edit(lever, setting)]
        if any(place.reason is not None and place.line != _OPTIONAL for place in found):
            editor.files = files
            reason = "it changes the training unless the other lines of the lever are written, too"
            found = [replace(place, reason=place.reason or reason, remark=None) for place in found]
        places += found
    texts = {path: file.edited() for path, file in sorted(editor.files.items())}
    diff = (line for path, text in texts.items() for line in _diff(_shown(path, root), sources[path], text))
    return Patch("".join(diff), tuple(places), texts, editor.open)


def find_patch(
    kept: Mapping[str, Sequence[Setting]],
    scouted: Scouted,
    sources: dict[str, bytes],
    root: Path,
    run: Callable[[dict[str, bytes]], Arguments | None],
) -> Patch:
    """Make the patch, also of values that come from configuration files or from elsewhere in Python.

    Args:
        run: Runs the script in a copy of the project with these texts of its files, and returns the arguments that the
            calls get; None if it fails.
    """
    before = scouted.arguments.values
    changed = {name for settings in kept.values() for each in settings for name in each.arguments} | {"prefetch_factor"}

    def others(arguments: Mapping[str, Value]) -> dict[str, Value]:
        return {name: value for name, value in arguments.items() if name not in changed}

    def arrives(place: str, name: str, value: Value, after: Mapping[str, Value]) -> bool:
        return name in after and after[name] == value and others(after) == others(before[place])

    found: dict[Argument, Origin | None] = {}
    waiting: dict[Argument, list[Origin]] = {}
    patch = make_patch(kept, scouted.sites, sources, root)
    for _ in range(MOST_RUNS):
        for (place, name), (value, names) in patch.open.items():
            if (place, name) not in waiting and place in before:
                parameters = scouted.parameters[place]
                waiting[place, name] = find_origins((*names, name), before[place].get(name), value, parameters, sources)
        tried = {argument: origins.pop(0) for argument, origins in waiting.items() if origins and argument not in found}
        if not tried:
            break
        # Other levers would only make the run longer, e.g. by compilation.
        needed = {
            lever: settings
            for lever, settings in kept.items()
            if any((each.place, name) in waiting for each in settings for name in each.arguments)
        }
        arrived = run(sources | make_patch(needed, scouted.sites, sources, root, found | tried).texts)
        if arrived is not None:
            found |= {
                argument: tried.get(argument)
                for argument, (value, _) in patch.open.items()
                if arrives(*argument, value, arrived.values[argument[0]])
            }
        patch = make_patch(kept, scouted.sites, sources, root, found)
    return patch


class _Editor:
    """Edits files, and yields the place of each setting, with the reason if the edit is not certain.

    Attributes:
        files: The files with edits.
        open: Arguments that get their values from elsewhere: the new value, and the names that it may have there.
    """

    def __init__(
        self,
        sites: Mapping[str, Sequence[Site | str]],
        sources: Mapping[str, bytes],
        root: Path,
        origins: Mapping[Argument, Origin | None],
    ) -> None:
        self.files: dict[str, SourceFile] = {}
        self.open: dict[Argument, tuple[Value, tuple[str, ...]]] = {}
        self._sites, self._sources, self._root, self._origins = sites, sources, root, origins

    def edit(self, lever: str, setting: Setting) -> Iterator[Place]:
        """Edit the calls that take a setting, or the origins of its arguments, and yield their places."""
        calls = self._sites.get(setting.place, ())
        if not calls:
            reason = "the call that takes it was not found" if setting.place else "no Python file holds it"
            yield Place(lever, str(setting), reason=reason)
        places = {name: (setting.place, name) for name in setting.arguments}
        origins = [origin for place in places.values() if (origin := self._origins.get(place)) is not None]
        rest = {name: setting.arguments[name] for name, place in places.items() if place not in self._origins}
        for site in calls:
            if rest or not setting.arguments:
                yield self._edit_call(lever, replace(setting, arguments=rest), site)
        for origin in origins:
            place = Place(lever, origin.shown, _shown(origin.path, self._root), origin.line)
            try:
                self._file(origin.path).set_value(origin)
                self._check(origin.path)
            except UncertainError as error:
                yield replace(place, reason=str(error))
            else:
                yield replace(place, remark=READERS)

    def _edit_call(self, lever: str, setting: Setting, site: Site | str) -> Place:
        parsed = isinstance(site, str) and _PARSER in site
        place = Place(lever, _options(setting, "") if parsed else str(setting))
        try:
            if isinstance(site, str):
                raise UncertainError(_made_elsewhere(site, setting), dict.fromkeys(setting.arguments, ()))
            place = replace(place, file=_shown(site.path, self._root), line_number=site.line)
            file = self._file(site.path)
            assert isinstance(file, PythonFile)
            written = _edit(file, site, setting)
            self._check(site.path)
        except UncertainError as error:
            for name, names in error.origins.items():
                self.open[setting.place, name] = ast.literal_eval(setting.arguments[name]), names
            return replace(place, reason=str(error))
        return replace(place, line=str(written), remark=OTHERS if site.makes_others else None)

    def _file(self, path: str) -> SourceFile:
        return self.files.setdefault(path, parse_file(path, self._sources[path]))

    def _check(self, path: str) -> None:
        if not self.files[path].is_exact():
            raise UncertainError("an edit of this line would change more than that")


def _shown(path: str, root: Path) -> str:
    return Path(path).relative_to(root).as_posix() if Path(path).is_relative_to(root) else path


_PARSER = "hf_argparser."


def _options(setting: Setting, prefix: str) -> str:
    """Return a setting as options of a command."""
    return " ".join(f"--{prefix}{name}={value}" for name, value in setting.arguments.items())


def _made_elsewhere(function: str, setting: Setting) -> str:
    if _PARSER in function:
        return "HfArgumentParser makes the TrainingArguments: add it to your command, or to the file that it reads"
    options = _options(setting, "trainer.")
    of_cli = {
        "Trainer": f"LightningCLI makes the Trainer: give {options}, or set it in your configuration file",
        "module": "LightningCLI calls fit: give it run=False, and call cli.trainer.fit with the changed cli.model",
        "statement": "LightningCLI calls fit: write it before",
    }
    reasons = of_cli if ".cli." in function else {}
    other = "makes this call, which is not in your files" if "." in function else "sets its value"
    return reasons.get(setting.place, f"{function} {other}")


def _edit(file: PythonFile, site: Site, setting: Setting) -> Setting:
    """Add the edits of one setting, and return it as written. Nothing is added if one of them is not certain."""
    call = _find_call(file, site)
    if setting.place == "module":
        _wrap(file, call, setting.code)
    elif setting.place == "statement":
        _insert(file, call, setting.code)
    else:
        return replace(setting, arguments=_set_arguments(file, call, site, setting))
    return setting


def _find_call(file: PythonFile, site: Site) -> ast.Call:
    if site.column is not None:
        exact = (site.line, site.column, site.end_line, site.end_column)
        found = [
            call for call in file.calls if exact == (call.lineno, call.col_offset, call.end_lineno, call.end_col_offset)
        ]
    else:
        found = [call for call in file.calls if call.lineno == site.line and callee(call) in (site.name, "__init__")]
    if len(found) != 1:
        raise UncertainError("the call cannot be told apart from others on this line")
    return found[0]


def _set_arguments(file: PythonFile, call: ast.Call, site: Site, setting: Setting) -> dict[str, str]:
    """Add the edits of a call's arguments, and return the arguments."""
    arguments = dict(setting.arguments)
    given = _given(call, site, arguments)
    if setting.place == "optimizer":
        if callee(call) != site.name:
            names = dict.fromkeys(arguments, ())
            raise UncertainError(f"this call makes other optimizers than {site.name}, too", names)
        if "foreach" in given:
            raise UncertainError(f"remove foreach={_short(file.text(given['foreach']))}, which excludes fused=True")
    if site.makes_others and "batch_size" in arguments:
        raise UncertainError("this call may make other loaders, which keep their batch size")
    replaced = {name: given[name] for name in arguments if name in given}
    if elsewhere := {name: old for name, old in replaced.items() if not _is_constant(old)}:
        name, old = next(iter(elsewhere.items()))
        reason = f"{name} is the expression {_short(file.text(old))}: change its value"
        raise UncertainError(reason, {name: _names(old) for name, old in elsewhere.items()})
    of = "dataloader_" if setting.place == "TrainingArguments" else ""
    if (workers := f"{of}num_workers") in given and workers not in arguments:
        # Its value is set elsewhere, maybe to 0 in another configuration. DataLoader then refuses these two.
        some = f"{file.text(given[workers])} > 0"
        without = {
            f"{of}persistent_workers": some,
            f"{of}prefetch_factor": f"{arguments.get(f'{of}prefetch_factor')} if {some} else None",
        }
        arguments |= {name: text for name, text in without.items() if name in arguments}
    for name, value in arguments.items():
        if name not in replaced:
            file.added.setdefault(call, {})[name] = value
            call.keywords.append(ast.keyword(name, _expression(value)))
            continue
        file.edits.append((*file.span(replaced[name]), value))
        _replace(call, replaced[name], _expression(value))
    return arguments


def _given(call: ast.Call, site: Site, wanted: Iterable[str]) -> dict[str | None, ast.expr]:
    """Return the arguments of a call by the names of their parameters."""
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    if None in named or any(isinstance(argument, ast.Starred) for argument in call.args):
        reason = f"the call takes arguments by * or **, which may hold {' and '.join(wanted)}"
        raise UncertainError(reason, dict.fromkeys(wanted, ()))
    return {**dict(zip(site.parameters, call.args, strict=False)), **named}


def _names(node: ast.expr) -> tuple[str, ...]:
    """Return the last name of an expression such as ``self.hparams.workers`` or ``config["workers"]``."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return (str(node.slice.value),)
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return (name,) if name else ()


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


def _wrap(file: PythonFile, call: ast.Call, code: str) -> None:
    """Change the module that ``fit`` gets."""
    named = [keyword for keyword in call.keywords if keyword.arg == "model"]
    if not named and (not call.args or isinstance(call.args[0], ast.Starred)):
        raise UncertainError("the module is not an argument of this call")
    module = named[0].value if named else call.args[0]
    original, text = file.wrapped.get(call, (module, file.text(module)))
    simple = isinstance(module, ast.Name | ast.Attribute | ast.Call) or not code.startswith("{}")
    text = code.format(text if simple else f"({text})")
    _import_torch(file)
    file.wrapped[call] = original, text
    _replace(call, module, _expression(text))


def _insert(file: PythonFile, call: ast.Call, code: str) -> None:
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


def _indent(file: PythonFile, statement: ast.stmt) -> tuple[int, str]:
    """Return the first byte of the line of a statement, and its indentation."""
    begin = file.span(statement)[0]
    line = file.source.rfind(b"\n", 0, begin) + 1
    indent = file.source[line:begin].decode()
    if indent.strip():
        raise UncertainError("its line has other statements, too")
    return line, indent


def _put(file: PythonFile, body: list[ast.stmt], statement: ast.stmt, code: str) -> None:
    """Write a line before a statement."""
    line, indent = _indent(file, statement)
    ending = "\r\n" if b"\r\n" in file.source else "\n"
    file.edits.append((line, line, f"{indent}{code}{ending}"))
    body.insert(body.index(statement), ast.parse(code).body[0])


def _import_torch(file: PythonFile) -> None:
    """Import torch before the first other import, if the file does not import it."""
    imports = [node for node in file.tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = [alias for node in imports if isinstance(node, ast.Import) for alias in node.names]
    if any(alias.name.partition(".")[0] == "torch" and alias.asname in (None, "torch") for alias in names):
        return
    first = next((n for n in imports if not (isinstance(n, ast.ImportFrom) and n.module == "__future__")), None)
    if first is None:
        raise UncertainError("the file has no import to write 'import torch' next to")
    _put(file, file.tree.body, first, "import torch")


def _diff(name: str, old: bytes, new: bytes) -> Iterator[str]:
    before, after = (re.findall(r"[^\n]*\n|[^\n]+", text.decode()) for text in (old, new))
    for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
