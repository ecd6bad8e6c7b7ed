"""The server: it checks calls, runs each in a confined process, and returns large answers in pages."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from lightning_perf import __version__
from lightning_perf.errors import LocatedError
from lightning_perf.mcp_server.confinement import MEMORY_GB, TIMEOUT_S, confine_process
from lightning_perf.mcp_server.tools import MORE, TOOLS, Result, Tool, error_result
from lightning_perf.workers.channel import Channel, Message
from lightning_perf.workers.limits import limit_memory
from lightning_perf.workers.process import WorkerError, WorkerProcess, WorkerTimeoutError

if TYPE_CHECKING:
    from mcp.server import Server


LIMIT_BYTES = 16_384
"""Largest answer, in bytes of UTF-8 JSON. About 4,000 to 6,000 tokens."""

_LEAST = 80
"""Bytes from which a part is worth showing. Below, it has only a handle."""

_ENOUGH = 8
"""Entries that a page should have, even if each of them has to be cut for that."""

_KEYS = 80
"""Most keys of an object that are all shown. Records have fewer; a mapping by name may have thousands."""

_NAME = 300
"""Most characters of a key that are shown."""

Handle: TypeAlias = Callable[[str, int], str]
"""Makes the handle for the part of an answer at a JSON pointer (RFC 6901), from an index on."""


class HandleError(LocatedError):
    """A handle for more does not name a part of a kept answer."""


def cut(value: Any, handle: Handle, limit: int = LIMIT_BYTES, pointer: str = "") -> Any:
    """Return a JSON value cut to a number of bytes.

    A list that was cut becomes an object with ``items``, ``total`` and ``more``. A text that was cut becomes one with
    ``text``, ``characters`` and ``more``. A value without room becomes one with only ``more``.
    """
    if encoded_size(value) <= limit:
        return value
    if not isinstance(value, (str, dict, list)):
        return value
    more = handle(pointer, 0)
    room = limit - len(more) - _LEAST  # for the members around the shown part
    if room < _LEAST:
        return {"more": more}
    if isinstance(value, str):
        text = _prefix(value, room)
        return {"text": text, "characters": len(value), "more": handle(pointer, len(text))}
    shown = _entries(value, handle, room, pointer, 0)
    if isinstance(value, list):
        items = [item for _, item in shown]
        whole = {"items": items, "total": len(value), "more": handle(pointer, len(items))}
        return items if len(items) == len(value) else whole
    rest = {"total": len(value), "more": more} if len(shown) < len(value) else {}
    return dict(shown) | rest


def page_of(value: Any, handle: Handle, pointer: str, start: int) -> Any:
    """Return a kept answer's value at a pointer from an item, entry or character on, cut to the limit."""
    room = LIMIT_BYTES - 4 * _LEAST - len(pointer)  # for the members around the page
    if isinstance(value, str):
        text = _prefix(value[start:], room)
        end = start + len(text)
        return {"value": text} | ({"characters": len(value), "more": handle(pointer, end)} if end < len(value) else {})
    if not isinstance(value, (dict, list)):
        return {"value": value}
    shown = _entries(value, handle, room, pointer, start)
    end = start + len(shown)
    answer: dict[str, Any] = {"value": dict(shown) if isinstance(value, dict) else [item for _, item in shown]}
    if start or end < len(value):
        answer |= {"from": start, "total": len(value)}
    return answer | ({"more": handle(pointer, end)} if end < len(value) else {})


def find_value(root: Any, pointer: str) -> Any:
    """Return the part of a JSON value at a pointer, or raise a `HandleError` if it is missing."""
    value = root
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        try:
            if isinstance(value, dict) and key not in value and key.startswith("#"):
                key = list(value)[int(key[1:])]
            value = value[key] if isinstance(value, dict) else value[int(key)] if isinstance(value, list) else None
        except (KeyError, IndexError, ValueError):
            value = None
        if value is None:
            raise HandleError(repr(pointer[:200]), "no such part of the answer", "Use a handle as an answer gave it")
    return value


def encoded_size(value: Any) -> int:
    """Return the bytes of a value as JSON."""
    return len(msgspec.json.encode(value))


def _prefix(text: str, room: int) -> str:
    """Return as much of a text as has room."""
    count = room
    while encoded_size(text[:count]) > room:
        count //= 2
    return text[:count]


def _entries(value: Any, handle: Handle, room: int, pointer: str, start: int) -> list[tuple[str, Any]]:
    """Return the entries of an object or list that have room, from one on, at least one.

    Short entries are shown in full, and long ones are cut to equal sizes: so that an object has all of its members, and
    a list some of its items.
    """
    names = list(value)[start:] if isinstance(value, dict) else range(start, len(value))
    has_all = isinstance(value, dict) and len(value) <= _KEYS
    most = max(_fair_share([encoded_size(value[name]) for name in names], room), 0 if has_all else room // _ENOUGH)
    shown: list[tuple[str, Any]] = []
    for row, name in enumerate(map(str, names), start):
        key = name if len(name) <= _NAME else f"{name[:_NAME]}…"
        # A name that is too long for a handle is replaced by its place, e.g. ``#3``.
        part = name.replace("~", "~0").replace("/", "~1") if len(name) <= _NAME else f"#{row}"
        entry = key, cut(value[names[row - start]], handle, most - len(key) - 4, f"{pointer}/{part}")
        room -= encoded_size(entry)
        if room < 0 and shown:
            break
        shown.append(entry)
    return shown


def _fair_share(sizes: list[int], room: int) -> int:
    """Return the size to which long entries are cut, so that they have room together with the short ones."""
    for left, size in zip(range(len(sizes), 0, -1), sorted(sizes), strict=True):
        if size > room // left:
            return room // left
        room -= size
    return room


PACKAGES = Path(__file__).parents[2]
"""The folder with this package, which is on the search path anyway."""

PROGRESS_S = 5.0
"""Interval of notes on the progress of a call."""

CALLS = 2
"""Calls that run at the same time. Others wait."""

KEPT_ANSWERS = 16
KEPT_BYTES = 64 << 20
"""Answers that the server keeps for `more`, and their bytes."""

INSTRUCTIONS = f"""\
lightning_perf measures where the step time of a PyTorch training goes, what to change, and whether a change helped.
1. list_runs finds traces and runs. 2. analyze returns findings with evidence, the fix and an estimated range.
3. Apply one fix. 4. compare decides from repeated runs whether it helped. diff only shows where a change acted.
Every answer has outcome and message. no_finding, inconclusive, refused and invalid_runs are results: report them
unchanged, and do not derive a number from them. Estimates are predictions until compare has measured them.
An answer has at most {LIMIT_BYTES} bytes. Where it was cut, a member named more has a handle for the tool more."""


LARGEST_BYTES = 32 << 20
"""Largest document that an answer keeps. That of a run of eight ranks has about 3 MB."""


class Call(Message, frozen=True):
    """A call of a tool, with checked arguments as JSON. Only tools that run the user's code may use more memory."""

    tool: str
    arguments: bytes
    folders: tuple[str, ...]
    memory_bytes: int


class Returned(Message, frozen=True):
    """The result of a call as JSON, with the members ``outcome`` and ``message``."""

    result: bytes


def answer_call(channel: Channel) -> None:
    """Answer one call, in a worker process with limited memory that is confined to the folders of the server."""
    call = channel.receive(Call)
    tool = TOOLS[call.tool]
    folders = [Path(folder) for folder in call.folders]
    limit = None
    if not tool.runs_code:
        limit = limit_memory(most_bytes=call.memory_bytes)
        confine_process(folders)
    try:
        arguments = msgspec.json.decode(call.arguments, type=tool.arguments)
        result = _encode(tool.answer(folders, **msgspec.structs.asdict(arguments)))
    except MemoryError:
        size = f"{limit / 1e9:.1f} GB of " if limit is not None else ""
        action = "Start the server with a larger --memory, or run the command of the same name in a terminal."
        result = msgspec.json.encode(error_result(f"It needs more than the {size}memory that a call may use. {action}"))
    except Exception as error:  # every failure is an answer
        result = msgspec.json.encode(error_result(_describe(error)))
    channel.send(Returned(result))


def _encode(result: Result) -> bytes:
    data = msgspec.json.encode(result)
    if len(data) <= LARGEST_BYTES:
        return data
    omitted = (
        f"The document has more than {LARGEST_BYTES >> 20} MB and was left out. Print it with --json in a terminal."
    )
    return msgspec.json.encode({**result, "document": omitted})


def _describe(error: Exception) -> str:
    ours = type(error).__module__.partition(".")[0] == __name__.partition(".")[0]
    return str(error) if ours else f"{type(error).__name__}: {error}"


class ToolServer:
    """Answers calls of the tools. It needs no MCP package.

    Args:
        allow_run: Whether tools may run the user's code.
        memory_bytes: Memory limit of a call that only reads.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        allow_run: bool = False,
        timeout_s: float = TIMEOUT_S,
        memory_bytes: int = int(MEMORY_GB * 1e9),
    ) -> None:
        self._folders = tuple(folder.resolve() for folder in folders)
        self._allow_run = allow_run
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._answers = 0
        self._lock = threading.Lock()

    def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, is_wanted: Callable[[], bool] | None = None
    ) -> Result:
        """Answer a call with ``tool``, ``outcome``, ``message`` and further members, in at most `LIMIT_BYTES` as JSON.

        If `is_wanted` returns False, which is asked about twice per second, the call is stopped.
        """
        tool = TOOLS.get(name)
        if tool is None:
            names = ", ".join(TOOLS)
            return self._answer(name[:100], error_result(f"unknown tool {name[:100]!r}. The tools are {names}."))
        try:
            given = msgspec.convert(dict(arguments or {}), tool.arguments)
        except msgspec.ValidationError as error:
            fields = ", ".join(tool.arguments.__struct_fields__)
            return self._answer(name, error_result(f"wrong arguments: {error}. The arguments are {fields}."))
        if name == MORE:
            return self._more(**msgspec.structs.asdict(given))
        if tool.runs_code and not self._allow_run:
            reason = (
                f"Refused: {name} runs code on this machine, and this server only reads. If the user agrees, they can "
                "start it with: lightning-perf mcp --allow-run"
            )
            return self._answer(name, {"outcome": "refused", "message": reason})
        return self._answer(name, self._run(tool, given, is_wanted))

    def _run(self, tool: Tool, arguments: msgspec.Struct, is_wanted: Callable[[], bool] | None) -> Result:
        call = Call(tool.name, msgspec.json.encode(arguments), tuple(map(str, self._folders)), self._memory_bytes)
        limit_s = self._timeout_s + tool.extra_s(arguments)
        # Python imports modules from its working directory. A module among the files of a run must not be one of them.
        where = self._folders[0] if tool.runs_code else PACKAGES
        try:
            with WorkerProcess("lightning_perf.mcp_server.server:answer_call", call, folder=str(where)) as worker:
                returned: Returned = worker.receive(Returned, timeout_s=limit_s, is_wanted=is_wanted)
        except WorkerTimeoutError:
            action = "Start the server with a larger --timeout, or give a smaller trace"
            return error_result(f"It took longer than {limit_s:g} s and was stopped. {action}.")
        except WorkerError as error:
            return error_result(f"It failed: {error}.")
        result: Result = msgspec.json.decode(returned.result)
        return result

    def _answer(self, name: str, result: Result) -> Result:
        answer = {"tool": name, **result}
        handle = self._keep(answer)
        if isinstance(answer.get("document"), (dict, list)):
            answer["document"] = {"more": handle("/document", 0)}
        shown: Result = cut(answer, handle)
        return shown

    def _keep(self, answer: Result) -> Callable[[str, int], str]:
        data = msgspec.json.encode(answer)
        with self._lock:
            self._answers += 1
            key = f"a{self._answers}"
            self._kept[key] = data
            while len(self._kept) > KEPT_ANSWERS or sum(map(len, self._kept.values())) > KEPT_BYTES:
                self._kept.popitem(last=False)
        return _handles(key)

    def _more(self, handle: str) -> Result:
        key, _, rest = handle.partition(":")
        start, _, pointer = rest.partition(":")
        with self._lock:
            data = self._kept.get(key)
        try:
            if data is None or not start.isdecimal() or len(start) > 12:
                raise HandleError(repr(handle[:200]), "the server keeps no such answer", "Call the tool again")
            page = page_of(find_value(msgspec.json.decode(data), pointer), _handles(key), pointer, int(start))
        except HandleError as error:
            return {"tool": MORE, **error_result(str(error))}
        return {"tool": MORE, "outcome": "page", "handle": handle[:200], **page}


def _handles(key: str) -> Callable[[str, int], str]:
    return lambda pointer, start: f"{key}:{start}:{pointer}"


async def serve(tools: ToolServer) -> None:
    """Serve the tools over standard input and output until the client closes them."""
    from mcp.server.stdio import stdio_server

    server = make_server(tools)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def make_server(tools: ToolServer, progress_s: float = PROGRESS_S) -> Server[Any]:
    """Return the server of the official package that lists the tools and passes calls on."""
    import anyio
    import mcp_types as types
    from mcp.server import Server

    calls = anyio.CapacityLimiter(CALLS)

    async def list_tools(context: Any, arguments: Any) -> types.ListToolsResult:  # noqa: ARG001
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.description,
                    input_schema=tool.schema(),
                    annotations=types.ToolAnnotations(read_only_hint=not tool.runs_code, open_world_hint=False),
                )
                for tool in TOOLS.values()
            ]
        )

    async def call_tool(context: Any, call: types.CallToolRequestParams) -> types.CallToolResult:
        stopped = threading.Event()

        async def report_progress() -> None:  # clients that ask for it know that the call still runs
            begin = anyio.current_time()
            while True:
                await anyio.sleep(progress_s)
                seconds = round(anyio.current_time() - begin)
                await context.session.report_progress(seconds, message=f"{call.name} has run for {seconds} s")

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(report_progress)
                answer = await anyio.to_thread.run_sync(
                    lambda: tools.call(call.name, call.arguments, lambda: not stopped.is_set()),
                    abandon_on_cancel=True,
                    limiter=calls,
                )
                group.cancel_scope.cancel()
        finally:
            stopped.set()  # a call that the client cancelled ends its worker process
        text = msgspec.json.encode(answer).decode()
        # Refusals and missing findings are results.
        failed = answer.get("outcome") == "error"
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=failed)

    return Server(
        "lightning_perf",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
