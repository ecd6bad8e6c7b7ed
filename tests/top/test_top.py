"""``lightning-perf top``: figures against a second calculation, a file that grows, a terminal and its keys."""

import io
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from lightning_perf.cli import main
from lightning_perf.report.build import analyze
from lightning_perf.run_files.captures import CAPTURES, CaptureRecord, CaptureTrigger
from lightning_perf.run_files.hangs import HANGS, HangReport
from lightning_perf.run_files.numerics.samples import SCALE_EVENTS, ScaleEvent
from lightning_perf.run_files.run_record import Outcome, RunRecorder
from lightning_perf.run_files.steps import STEPS, StepSample, StepsTail
from lightning_perf.show.console import ReportConsole
from lightning_perf.top.frame import render_frame
from lightning_perf.top.watch import LATEST_STEPS, RunState, RunWatch, find_newest_log
from tests.support.absent_packages import without

MS = 1_000_000


def sample(step: int, step_ms: int = 100, *, wait_ms: int = 20, samples: int | None = 32, profiled: bool = False):
    return StepSample(step, step_ms * MS, wait_ms * MS, None, samples, profiled)


def write(folder: Path, *samples: StepSample, rank: int = 0) -> None:
    STEPS.append(STEPS.path(folder, rank), *samples)


def frame(state: RunState, width: int = 100) -> str:
    text = io.StringIO()
    ReportConsole(file=text, width=width, highlight=False, emoji=False, markup=False).print(render_frame(state))
    return text.getvalue()


def test_the_figures(tmp_path: Path) -> None:
    steps = [sample(n, 100 + n % 3) for n in range(200)]
    steps[60] = sample(60, 400, wait_ms=310)
    steps[195] = sample(195, 900, profiled=True)
    write(tmp_path, *steps)
    (rank,) = RunWatch(tmp_path).read().ranks
    latest = [one for one in steps[-LATEST_STEPS:] if not one.profiled]
    wall_ns = sum(one.step_ns for one in latest)
    assert (rank.rank, rank.steps) == (0, 200)
    assert rank.step_ns == sorted(one.step_ns for one in latest)[len(latest) // 2]
    assert rank.data_wait_share == pytest.approx(sum(one.data_wait_ns for one in latest) / wall_ns)
    assert rank.samples_per_second == pytest.approx(32 * len(latest) / wall_ns * 1e9)
    assert (rank.usual.p50_ns, rank.usual.outlier_steps, rank.usual.outliers) == (101 * MS, 1, (steps[60],))
    assert len(rank.latest_ns) == LATEST_STEPS
    assert (rank.loss_scale, rank.skipped_steps, rank.captures) == (None, 0, 0)


def test_a_frame_shows_them(tmp_path: Path) -> None:
    write(tmp_path, *[sample(n) for n in range(99)], sample(99, 400, wait_ms=310))
    write(tmp_path, *[sample(n, 200) for n in range(90)], rank=1)
    events = [("start", 0, 65536.0), ("overflow", 3, 32768.0), ("overflow", 9, 16384.0)]
    SCALE_EVENTS.append(SCALE_EVENTS.path(tmp_path, 0), *[ScaleEvent(k, n, s, n, 0) for k, n, s in events])  # type: ignore[arg-type]
    CAPTURES.append(CAPTURES.path(tmp_path, 1), CaptureRecord("on-demand-7", CaptureTrigger.FILE, 6))
    record = RunRecorder(tmp_path, {}, {})
    record.epoch_ends(2, 100, {"val_acc": 0.875})
    lines = frame(RunWatch(tmp_path).read()).splitlines()
    assert lines[0] == f"{tmp_path}  running"
    assert lines[1] == "epoch 2 ended  val_acc 0.875"
    heads, *rows = [line.split() for line in lines[3:6]]
    assert " ".join(heads) == "rank steps step time usual wait samples/s slow scale skipped captures written"
    assert rows[0][:3] == ["0", "100", "100"]
    assert rows[1][:3] == ["1", "90", "200"]
    assert "  16,384        2" in lines[4]
    assert lines[7] == "last 50 steps of rank 0, 100 ms to 400 ms"
    assert lines[8] == "▁" * 49 + "█"
    assert lines[-1] == "  step 99 of rank 0: 400 ms, 4.00× the usual, waits 310 ms for data"
    record.ends(Outcome.FAILED, error="OSError: no disk")
    assert "failed after " in frame(RunWatch(tmp_path).read()).splitlines()[0]


def test_a_narrow_terminal_and_many_ranks(tmp_path: Path) -> None:
    for rank in range(40):
        write(tmp_path, *[sample(n, 100 + rank) for n in range(20)], rank=rank)
    state = RunWatch(tmp_path).read()
    text = frame(state, width=80)
    assert "the 16 ranks of 40 with the longest steps" in text
    assert [line.split()[0] for line in text.splitlines() if line.endswith(" ago")] == [str(n) for n in range(24, 40)]
    assert max(map(len, text.splitlines()[1:])) <= 80


def test_only_the_new_part_of_a_file_is_read(tmp_path: Path) -> None:
    path = STEPS.path(tmp_path, 0)
    watch = RunWatch(tmp_path)
    assert watch.read().ranks == ()
    written: list[StepSample] = []
    for _ in range(5):
        new = [sample(len(written) + n) for n in range(70)]
        written += new
        content = STEPS.encode(*new)
        for part, pending in ((content[:100], 70), (content[100:], 0)):  # a line that is being written
            with path.open("ab") as file:
                file.write(part)
            states = watch.read().ranks
            expected = len(written) - pending
            assert [state.steps for state in states] == ([expected] if expected else [])
    tail = StepsTail(path, keep=30)
    assert list(tail.read_on()) == written[-30:]
    assert tail.count == 350
    path.unlink()
    write(tmp_path, sample(0, 7))
    assert [(state.steps, state.step_ns) for state in watch.read().ranks] == [(1, 7 * MS)]
    assert list(tail.read_on()) == [sample(0, 7)]


def test_a_run_that_has_stopped_writing_is_marked_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, *[sample(n) for n in range(20)])
    STEPS.path(tmp_path, 1).write_text("nonsense\n")
    state = RunWatch(tmp_path, now_s=lambda: time.time() + 125).read()
    assert [rank.rank for rank in state.ranks] == [0]
    shown = frame(state, width=300)
    assert shown.splitlines()[0].endswith("no new step for 2 min 5 s")
    assert "steps.rank1.jsonl: line 1 is no step sample" in shown


def test_the_newest_run_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert find_newest_log(tmp_path) is None
    for age, name in enumerate(["new", "old", ".hidden"]):
        (tmp_path / name).mkdir()
        write(tmp_path / name, sample(0))
        if name != ".hidden":
            os.utime(STEPS.path(tmp_path / name, 0), (1e9 - age, 1e9 - age))
    assert find_newest_log(tmp_path) == tmp_path / "new"
    assert main(["top", str(tmp_path)]) == 0
    assert str(tmp_path / "new") in "".join(capsys.readouterr().out.split())


def test_one_frame_without_a_terminal_and_without_torch(tmp_path: Path) -> None:
    write(tmp_path, *[sample(n) for n in range(20)])
    for more in ([], ["--once"], [str(tmp_path)]):
        done = subprocess.run(
            [sys.executable, "-c", without({"torch", "lightning", "tensorboard"}), "top", *more],
            capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[:2] == [str(tmp_path), "running"]  # a long path has a line of its own
        assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["top", "absent"], "absent: no such folder. Give the folder of a run"),
        (["top", "."], ".: no step times in it yet. They appear after 50 steps or 5 seconds"),
        (["top"], "no folder below holds step times (steps.rank0.jsonl). Give the RUN_FOLDER, or start"),
    ],
)
def test_bad_folders(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


class Terminal:
    """The command in a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        self.pid, self.descriptor = pty.fork()
        if not self.pid:
            os.environ.update(TERM="xterm", COLUMNS="100", LINES="30")
            command = [sys.executable, "-m", "lightning_perf", "top", str(folder), "--interval", "0.1"]
            os.execv(sys.executable, command)
        self.text = ""

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + 60
        while text not in self.text:
            ready, _, _ = select.select([self.descriptor], [], [], until - time.monotonic())
            assert ready, f"{text!r} did not appear in {self.text[-2000:]!r}"
            self.text += os.read(self.descriptor, 65536).decode(errors="replace")

    def end(self) -> int:
        try:
            while piece := os.read(self.descriptor, 65536):
                self.text += piece.decode(errors="replace")
        except OSError:  # the terminal is closed
            pass
        os.close(self.descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.parametrize("ending", ["q", "ctrl-c", "the run ends"])
def test_the_view_keeps_up_and_ends(tmp_path: Path, ending: str) -> None:
    record = RunRecorder(tmp_path, {}, {})
    terminal = Terminal(tmp_path)
    try:
        terminal.wait_for("No step yet.")
        write(tmp_path, *[sample(n) for n in range(1234)])
        terminal.wait_for("1234")
        write(tmp_path, *[sample(n, 300) for n in range(1234, 5678)])
        terminal.wait_for("5678")
        if ending == "q":
            os.write(terminal.descriptor, b"q")
        elif ending == "ctrl-c":
            os.write(terminal.descriptor, b"\x03")
        else:
            record.ends(Outcome.FINISHED)
    except BaseException:
        os.kill(terminal.pid, signal.SIGKILL)
        raise
    assert terminal.end() == (130 if ending == "ctrl-c" else 0)
    assert "\x1b[?1049l" in terminal.text, "the screen is as before"
    if ending != "ctrl-c":
        last = terminal.text.rpartition("\x1b[?1049l")[2]
        assert "5678" in last, "the last frame stays on the screen"
        assert ("finished after" in last) == (ending == "the run ends")


def test_ranks_in_which_nothing_ends_are_named(tmp_path: Path) -> None:
    now_s = 2_000_000_000.0
    stuck = HangReport(1, 120, "backward", "train.py:31 in main", now_s - 700, 600, collective="nccl:all_reduce 7")
    HANGS.append(HANGS.path(tmp_path, 1), replace(stuck, seconds=60), stuck)
    HANGS.append(HANGS.path(tmp_path, 0), replace(stuck, rank=0), replace(stuck, rank=0, continued=True))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / ".rank2.running").write_text(f"{ended.pid} {socket.gethostname()}")
    (tmp_path / ".rank3.running").write_text(f"{os.getpid()} {socket.gethostname()}")
    assert find_newest_log(tmp_path.parent) == tmp_path
    lines = frame(RunWatch(tmp_path, now_s=lambda: now_s).read()).splitlines()
    assert lines[:4] == [
        f"{tmp_path}  no step ends on 1 rank",
        "rank 1: no step ended for 11 min 40 s, step 120, backward",
        "  train.py:31 in main, last collective nccl:all_reduce 7",
        "rank 2: its process is gone",
    ]
    assert main(["top", str(tmp_path), "--once"]) == 0
    note = "On rank 1, no step had ended for 10 min 0 s at last: step 120, backward: train.py:31 in main."
    assert analyze(tmp_path).notes == (note,)
