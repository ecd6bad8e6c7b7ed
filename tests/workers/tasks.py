"""What worker processes do in the tests."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from lightning_perf.workers.channel import Message
from lightning_perf.workers.limits import limit_memory


class Begin(Message, frozen=True):
    text: str = ""


class Value(Message, frozen=True):
    value: float


class Text(Message, frozen=True):
    text: str


def echo(channel):
    """Answers each message with the same one."""
    channel.receive(Begin)
    while True:
        channel.send(channel.receive(Text, Value))


def chatter(channel):
    """Writes what looks like a message where libraries print."""
    channel.receive(Begin)
    print("printed by Python")
    os.write(1, b"\x81\xa4type\xa4Stop\n")
    os.write(2, b"printed by C\n")
    channel.send(Value(1.0))
    channel.receive(Value)
    os._exit(7)


def progress(channel):
    for part in (0.0, 0.5, 1.0):
        channel.send(Value(part))
        time.sleep(0.3)
    channel.send(Text("done"))


def environment(channel):
    channel.send(Text(os.environ[channel.receive(Begin).text]))


def search_path(channel):
    channel.send(Text("\n".join([str(Path.cwd()), *sys.path])))


def raise_error(channel):
    channel.receive(Begin)
    raise OSError("the disk is gone")


def leave(channel):
    sys.exit("no data")


def end(channel):
    print("noise\n" * 9 + "first\n\nthe reason", flush=True)
    os._exit(3)


def end_silently(channel):
    os._exit(3)


def crash(channel):
    print("before the crash")
    ctypes.string_at(0)


def kill_itself(channel):
    os.kill(os.getpid(), signal.SIGKILL)


def hang(channel):
    time.sleep(600)


def hang_after_a_message(channel):
    print("about to hang")
    channel.send(Value(1.0))
    time.sleep(600)


def hang_with_children(channel):
    """Has a process that ignores all but SIGKILL, and one that keeps the connection open; sends the three numbers."""
    stubborn = [
        sys.executable,
        "-c",
        "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; time.sleep(600)",
    ]
    numbers = [os.getpid(), subprocess.Popen(stubborn).pid, os.fork()]
    if numbers[-1] == 0:
        time.sleep(600)
    channel.send(Text(" ".join(map(str, numbers))))
    time.sleep(600)


def die_with_children(channel):
    """Is killed while a process of its own keeps the connection open."""
    child = os.fork()
    if child == 0:
        time.sleep(600)
    channel.send(Text(str(child)))
    channel.receive(Begin)
    channel.receive(Begin)
    os.kill(os.getpid(), signal.SIGKILL)


def take_memory(channel):
    limit_memory(least_bytes=300 << 20, share=0.0)
    try:
        taken = bytearray(1 << 30)
    except MemoryError:
        channel.send(Text("refused"))
    else:
        channel.send(Text(f"got {len(taken)}"))
