import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lightning_perf
from lightning_perf.cli import main
from lightning_perf.run_files.jsonl import RankLog
from tests.support.trace_builder import TraceBuilder


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    builder = TraceBuilder().step(1, 0, 100).op("aten::mm", 0, 90, types=["float"], dims=[[8, 4]])
    builder.launch("gemm", call_us=10, call_duration_us=5, start_us=20, duration_us=60)
    return builder.write(tmp_path / "rank0.pt.trace.json.gz")


def run(*arguments: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "lightning_perf"] if code is None else [sys.executable, "-c", code]
    return subprocess.run([*start, *arguments], capture_output=True, text=True, check=False, timeout=60)


UNUSED = {
    "torch", "lightning", "multiprocessing", "subprocess", "importlib.resources", "importlib.metadata", "email", "ssl",
    "packaging", "plotly", "matplotlib", "scipy", "lightning_perf.workers", "lightning_perf.compare",
    "lightning_perf.page", "lightning_perf.callbacks", "lightning_perf.probe.run", "lightning_perf.report.workers",
    "lightning_perf.report.compared", "lightning_perf.report.sections.page",
}  # fmt: skip


def test_a_report_loads_only_what_it_uses(trace: Path) -> None:
    code = (
        "import gc, sys; from lightning_perf.__main__ import main; main()\n"
        "print(gc.get_freeze_count(), *sys.modules, file=sys.stderr)"
    )
    frozen, *loaded = run("analyze", str(trace), code=code).stderr.split()
    assert "lightning_perf.report.build" in loaded
    assert not UNUSED & set(loaded)
    assert int(frozen) > 0  # the process ends without a search for garbage


def test_a_log_that_nobody_reads_has_no_decoder() -> None:
    assert "_decode" not in vars(RankLog(dict, "steps", "step sample"))


def test_by_shape_shows_shapes(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(trace), "--by-shape"]) == 0
    assert "[[8,4]]" in capsys.readouterr().out


def test_a_terminal_without_unicode_gets_the_report(trace: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lightning_perf", "analyze", str(trace)],
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"A step takes 100 us" in done.stdout
    assert b"?" not in done.stdout


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"lightning-perf {lightning_perf.__version__}")


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "no such file or folder"), (b"", "empty"), (b"hello", ""), (b'{"a": 1}', "")],
)
def test_bad_input_is_a_message_and_code_2(
    tmp_path: Path, content: bytes | None, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_bytes(content)
    assert main(["analyze", str(path)]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith(f"lightning-perf: {path}: ")
    assert problem in streams.err
    assert "Traceback" not in streams.err


def test_without_a_command_it_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "\n  analyze  report where the step time goes\n" in capsys.readouterr().err


@pytest.mark.parametrize(("check", "code"), [((), 0), (("--fail-on", "input-bound"), 1)])
def test_a_reader_that_leaves_gets_no_error_but_the_exit_code_of_a_check(check: tuple[str, ...], code: int) -> None:
    recording = Path(lightning_perf.__file__).parent / "demo" / "recordings" / "before"
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as broken:  # noqa: PTH123  (a file descriptor)
        done = subprocess.run(
            [sys.executable, "-m", "lightning_perf", "analyze", str(recording), *check],
            stdout=broken, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == code
    assert done.stderr.startswith("lightning-perf: --fail-on input-bound matched: input-bound" if check else "")
    assert bool(done.stderr) == bool(check)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_a_full_disk_is_a_message(trace: Path, option: list[str]) -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "lightning_perf", "analyze", str(trace), *option],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "lightning-perf: [Errno 28] No space left on device\n")


@pytest.mark.skipif(os.name != "posix", reason="needs a shell that can close a stream")
def test_an_output_that_is_closed_is_no_error(trace: Path) -> None:
    command = [sys.executable, "-m", "lightning_perf", "analyze", str(trace), "--json"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_control_c_is_130_without_a_traceback(trace: Path) -> None:
    command = [sys.executable, "-m", "lightning_perf", "view", str(trace), "--no-browser"]
    pytest.importorskip("viztracer")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Press Ctrl-C"):
                break
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == ""
