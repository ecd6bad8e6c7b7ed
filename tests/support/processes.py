"""Run processes in a test, and see whether they have ended."""

import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import reduction
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

ROOT = Path(__file__).parents[2]


ABORTED_AT_EXIT = "terminate called without an active exception"
"""C++ says so when Python ends a thread of torch's that waits for the interpreter while it shuts down (before 3.14).

Gloo's threads free Python objects, so any training on several CPU processes may abort while its process ends, with or
without us.
"""


PRELOADED = ["lightning.pytorch", "pytorch_lightning", "lightning_perf.callbacks.perf"]
"""Packages that take seconds to import: the server that forks the ranks imports them once."""


def fork_ranks(
    script: str, *arguments: str, ranks: int = 2, timeout_s: float = 120, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script once per rank, as a launcher does, without the seconds that each import of Lightning takes.

    ``{rank}`` in a variable stands for the rank. The answer joins the outputs of the ranks. With one rank and no
    variables, the script may start further ones.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    numbered = {"LOCAL_RANK": "{rank}", "RANK": "{rank}", "WORLD_SIZE": str(ranks)}
    variables = {"PYTHONPATH": path, **common, **(numbered if variables is None else variables)}
    with ExitStack() as opened:
        files = [[opened.enter_context(tempfile.TemporaryFile()) for _ in range(2)] for _ in range(ranks)]
        started = []
        for rank, (stdout, stderr) in enumerate(files):
            own = os.environ | {name: value.replace("{rank}", str(rank)) for name, value in variables.items()}
            started.append(Forked([script, *arguments], env=own, stdout=stdout, stderr=stderr))
        end = time.monotonic() + timeout_s
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(end - time.monotonic(), 0))
        late = [process for process in started if process.poll() is None]
        for process in late:
            os.killpg(process.pid, signal.SIGKILL)  # with what it has started
            process.wait()
        output, errors = ("".join(map(_content, streams)) for streams in zip(*files, strict=True))
    if late:
        pytest.fail(f"{len(late)} of {ranks} processes did not end\n{output}\n{errors}")
    code = next((process.returncode for process in started if process.returncode), 0)
    return subprocess.CompletedProcess([script, *arguments], code, output, errors)


def _content(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode()


class Forked:
    """Stands in for `subprocess.Popen` where Python runs a script or a module: forked, without the seconds of imports.

    Args:
        command: A script or ``-m`` and a module, then arguments. Words before ``-m`` are skipped.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: IO[bytes],
        stderr: IO[bytes] | int = subprocess.STDOUT,
        cwd: str | None = None,
        pass_fds: Sequence[int] = (),
        **_: Any,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        streams = [stdout.fileno(), stdout.fileno() if isinstance(stderr, int) else stderr.fileno()]
        self.returncode: int | None = None
        self._process = context.Process(
            target=_run_python,
            args=(list(command), cwd or str(Path.cwd()), dict(env), _Kept(*streams), _Kept(*pass_fds)),
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        try:
            # As with `subprocess.Popen`, it has a group of its own by now: who kills that group must not miss it.
            until(lambda: _leads_group(self.pid))
        except BaseException:
            self._process.kill()
            raise

    def poll(self) -> int | None:
        self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode


def _leads_group(pid: int) -> bool:
    """Whether a process leads a group of processes, or has ended."""
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return True


def fork_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let worker processes be forked, where it is not their start that is tested."""
    own = SimpleNamespace(**{**vars(subprocess), "Popen": Forked})
    monkeypatch.setattr("lightning_perf.workers.process.subprocess", own)


class _Kept:
    """Descriptors that a forked process gets under new numbers."""

    def __init__(self, *descriptors: int) -> None:
        self.numbers = descriptors

    def __reduce__(self) -> Any:
        return _received, tuple((number, reduction.DupFd(number)) for number in self.numbers)


def _received(*descriptors: tuple[int, Any]) -> list[tuple[int, int]]:
    return [(number, copy.detach()) for number, copy in descriptors]


def _run_python(
    command: list[str],
    folder: str,
    variables: dict[str, str],
    streams: list[tuple[int, int]],
    passed: list[tuple[int, int]],
) -> None:
    multiprocessing.set_start_method(None, force=True)  # the system's own, not that of this process
    os.setsid()
    os.chdir(folder)
    for number, (_, new) in enumerate(streams, start=1):
        os.dup2(new, number)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(variables)
    is_module = "-m" in command
    script, *arguments = command[command.index("-m") + 1 :] if is_module else command
    renamed = {str(number): str(new) for number, new in passed}
    sys.argv = [script, *(renamed.get(word, word) for word in arguments)]
    # What Python itself would search: not the path of the process that asked for this one.
    installed = [entry for entry in sys.path if entry.startswith((sys.prefix, sys.base_prefix))]
    first = folder if is_module else str(Path(script).absolute().parent)
    sys.path[:] = [first, *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep)), *installed]
    if is_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(script, run_name="__main__")


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie, which nobody has waited for, counts as dead once all of its threads are."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state != "Z" or len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except OSError:
        return not Path("/proc/self").exists()


def dies(pid: int, seconds: float = 20.0) -> bool:
    """Whether a process is dead, or will be within some seconds."""
    until = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_alive(pid)
