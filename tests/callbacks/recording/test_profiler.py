"""The window profiler on its own, told of steps by hand."""

from __future__ import annotations

import functools
import gc
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch.autograd.profiler import profile as autograd_profile
from torch.torch_version import TorchVersion

from lightning_perf.analysis.host.waits import COLLECTION
from lightning_perf.callbacks.background import BackgroundThread, other_threads
from lightning_perf.callbacks.recording import profiler as profiler_module
from lightning_perf.callbacks.recording.profiler import (
    WindowProfiler,
    export_options,
    recorder_is_taken,
)
from lightning_perf.callbacks.recording.recording_plan import Recording
from lightning_perf.callbacks.recording.schedule import Schedule, WindowPlan
from lightning_perf.callbacks.steps.fit_state import FitContext, FitState, Phase
from lightning_perf.callbacks.wrapped_methods import WrappedMethods
from lightning_perf.run_files.traces import export_trace
from lightning_perf.trace.reader import read_trace
from tests.callbacks.recording.test_window_notes import window_notes
from tests.callbacks.training import context, events, marks, step_marks, trace_files


class Window(WindowProfiler):
    """A window profiler with the state of its fit in reach."""

    opened: ClassVar[list[Window]] = []

    def __init__(self, fit: FitContext, *settings: Any) -> None:
        super().__init__(fit, *settings)
        self.state = fit.state
        self.opened.append(self)


@pytest.fixture(autouse=True)
def close_all(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each profiler of a test may hold torch's recorder, and looks out for others until it is closed."""
    yield
    monkeypatch.undo()
    while Window.opened:
        window = Window.opened.pop()
        window.close()


def profiler(folder: Path, *, recording: Recording | None = None, device_type: str = "cpu", **schedule: int) -> Window:
    fit = context(folder, state=FitState(first_number=10), device=device_type, rank=3)
    timing = Schedule(**{"skip_first": 0, "wait": 0, "warmup": 0, "active": 2, "repeat": 1, **schedule})
    return Window(fit, WindowPlan(timing, folder), recording or Recording(), window_notes(fit))


def start(window: Window, index: int) -> None:
    window.state.step = index
    window.on_step_start()


def multiply() -> None:
    torch.ones(3, 3) @ torch.ones(3, 3)


def step(window: Window, index: int) -> None:
    start(window, index)
    window.on_phase_start(Phase.FORWARD)
    multiply()
    window.on_phase_end(Phase.FORWARD)
    window.on_step_end()


def test_a_window_is_a_file_named_by_rank(tmp_path: Path) -> None:
    window = profiler(tmp_path)
    for index in range(4):
        step(window, index)
    (file,) = window.files
    assert trace_files(tmp_path) == [file]
    assert file.name.startswith("rank3.")
    assert [m.name for m in step_marks(file)] == ["ProfilerStep#10", "ProfilerStep#11"]
    assert [m.name for m in marks(file, "perf::")] == ["perf::forward"] * 2
    assert window.recorded_steps == 2
    assert not window.state.profiling


def test_it_is_active_from_warm_up_to_the_end_and_warm_up_is_not_in_the_file(tmp_path: Path) -> None:
    window = profiler(tmp_path, wait=1, warmup=2, active=1)
    active = []
    for index in range(5):
        step(window, index)
        active.append(window.state.profiling)
    assert active == [False, True, True, False, False]
    (file,) = window.files
    assert [m.name for m in step_marks(file)] == ["ProfilerStep#13"]
    assert len([e for e in events(file) if e["name"] == "aten::mm"]) == 1


def test_a_pause_with_nothing_recorded_writes_no_file(tmp_path: Path) -> None:
    window = profiler(tmp_path, warmup=1)
    start(window, 0)
    window.on_step_end()
    window.on_training_pause()
    window.on_training_pause()
    start(window, 1)
    window.on_phase_start(Phase.FETCH)  # no batch came
    window.on_phase_end(Phase.FETCH)
    window.on_step_dropped()
    assert trace_files(tmp_path) == []
    step(window, 1)
    step(window, 2)
    assert window.recorded_steps == 2


def test_abandoning_writes_nothing_and_stops_the_recorder(tmp_path: Path) -> None:
    window = profiler(tmp_path)
    step(window, 0)
    assert recorder_is_taken()
    window.close()
    assert not recorder_is_taken()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:.*Profiler clears events.*")
@pytest.mark.parametrize(("method", "recording"), [("prepare_trace", False), ("start_trace", True)])
def test_a_recorder_that_fails_to_start_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, recording: bool
) -> None:
    original = getattr(torch.profiler.profile, method)

    def fails(self: torch.profiler.profile) -> None:
        if recording:
            original(self)
        raise RuntimeError("injected")

    monkeypatch.setattr(torch.profiler.profile, method, fails)
    window = profiler(tmp_path)
    with pytest.raises(RuntimeError, match="injected"):
        start(window, 0)
    window.close()
    assert not recorder_is_taken()
    assert trace_files(tmp_path) == []


def torchs() -> Any:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


def has_product(recorded: Any) -> bool:
    return any(event.key == "aten::mm" for event in recorded.key_averages())


@pytest.mark.parametrize("records", [True, False])
def test_a_foreign_profiler_that_records_or_warms_up_keeps_the_recorder(tmp_path: Path, records: bool) -> None:
    window, foreign = profiler(tmp_path), torchs()
    foreign.prepare_trace()
    if records:
        foreign.start_trace()
    step(window, 0)
    if not records:
        foreign.start_trace()
        multiply()
    foreign.stop_trace()
    assert has_product(foreign)
    assert window.foreign_profiler
    assert trace_files(tmp_path) == []


@pytest.mark.parametrize("warmup", [0, 2])
def test_a_foreign_profiler_inside_a_step_gets_the_recorder(tmp_path: Path, warmup: int) -> None:
    # Both would end the process: to export from a recorder that another took over, and to start one that was prepared.
    untouched = torch.autograd.profiler.profile._prepare_trace
    window = profiler(tmp_path, warmup=warmup)
    for index in range(4):
        start(window, index)
        with torchs() as foreign:
            multiply()
        assert has_product(foreign)
        window.on_step_end()
    assert window.foreign_profiler
    assert window.recorded_steps == 0
    assert torch.autograd.profiler.profile._prepare_trace is untouched


def test_a_foreign_profiler_after_some_steps_leaves_us_those(tmp_path: Path) -> None:
    window = profiler(tmp_path, active=4)
    step(window, 0)
    start(window, 1)
    with torchs():
        multiply()
    window.on_step_end()
    step(window, 2)
    (file,) = window.files
    assert [m.name for m in step_marks(file) if m.finished] == ["ProfilerStep#10"]
    assert window.recorded_steps == 1


def test_another_thread_gets_the_recorder_when_the_trace_is_written_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A recording that another thread takes while it is stopped or written ends the process.
    first, second = profiler(tmp_path, active=1), profiler(tmp_path, active=1)
    seen: list[tuple[str, bool]] = []

    def try_to_begin(moment: str) -> None:
        thread = threading.Thread(target=start, args=(second, 0))
        thread.start()
        thread.join()
        seen.append((moment, second.state.profiling))

    def around(name: str, original: Any) -> Any:
        def call(*args: Any) -> Any:
            try_to_begin(f"before {name}")
            result = original(*args)
            try_to_begin(f"after {name}")
            return result

        return call

    with monkeypatch.context() as patches:
        for owner, name in ((torch.profiler.profile, "stop_trace"), (profiler_module, "export_trace")):
            patches.setattr(owner, name, around(name, getattr(owner, name)))
        step(first, 0)
    assert seen == [
        ("before stop_trace", False),
        ("after stop_trace", False),
        ("before export_trace", False),
        ("after export_trace", False),
    ]
    assert second.foreign_profiler
    step(second, 0)
    assert [window.recorded_steps for window in (first, second)] == [1, 1]


def test_a_window_that_is_written_leaves_no_memory_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recordings = []
    original = torch.profiler.profile.export_chrome_trace

    def export(self: Any, path: str) -> None:
        recordings.append(weakref.ref(self.profiler))
        original(self, path)

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", export)
    gc.disable()
    try:
        window = profiler(tmp_path, active=1)
        step(window, 0)
        (recording,) = recordings
        assert recording() is None
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:CUDA is not available, disabling CUDA profiling")
def test_cupti_leaves_between_two_windows_and_not_in_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It leaves with the first call to CUDA after a window is written: without one here, the next window would make it.
    calls: list[tuple[int, bool]] = []
    window = profiler(tmp_path, device_type="cuda", active=1, repeat=2)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append((len(window.files), window.state.profiling)))
    for index in range(3):
        step(window, index)
    # The others come before a window ends, as torch's own.
    assert calls[1::2] == [(1, False), (2, False)]


@pytest.mark.filterwarnings("ignore:CUDA is not available, disabling CUDA profiling")
@pytest.mark.parametrize(("device_type", "stopped"), [("cuda", True), ("cuda", False), ("cpu", True)])
def test_a_window_whose_buffer_for_the_device_was_full_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device_type: str, stopped: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.autograd, "_is_kineto_stopped", lambda: stopped)
    window = profiler(tmp_path, device_type=device_type, active=1)
    step(window, 0)
    (file,) = window.files
    trace = read_trace(file)
    # The flag may be left from an earlier recording of a device.
    assert trace.problems.truncated is (stopped and device_type == "cuda")


@pytest.mark.filterwarnings("ignore:CUDA is not available, disabling CUDA profiling")
def test_after_an_error_nothing_waits_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for a rank that is gone, in a collective that never ends."""
    calls: list[str] = []
    window = profiler(tmp_path, device_type="cuda", active=2)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    step(window, 0)
    window.stop_waiting()
    window.finish()
    window.close()
    assert calls == []
    assert len(window.files) == 1


def test_options_reach_the_recorder(tmp_path: Path) -> None:
    def recorded(folder: str, **options: Any) -> list[dict[str, Any]]:
        (tmp_path / folder).mkdir()
        window = profiler(tmp_path / folder, recording=Recording(**options), active=1)
        step(window, 0)
        return events(window.files[0])

    plain = recorded("plain", record_shapes=False)
    assert not any("Input Dims" in e["args"] for e in plain if e["cat"] == "cpu_op")
    rich = recorded("rich", with_flops=True, with_stack=True, profile_memory=True)
    (product,) = [e for e in rich if e["name"] == "aten::mm"]
    assert product["args"]["Input Dims"] == [[3, 3], [3, 3]]
    assert any(e["cat"] == "python_function" for e in rich)


def functions_of(path: Path) -> list[str]:
    return [event["name"] for event in events(path) if event["cat"] == "python_function"]


def threads_at_start_and_stop(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    seen: list[list[str]] = []
    for name in ("start_trace", "stop_trace"):
        original = getattr(torch.profiler.profile, name)

        def call(self: Any, original: Callable[[Any], None] = original) -> None:
            seen.append(other_threads())
            original(self)

        monkeypatch.setattr(torch.profiler.profile, name, call)
    return seen


@pytest.mark.parametrize("with_stack", [True, False])
def test_our_threads_stand_still_while_functions_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_stack: bool
) -> None:
    seen = threads_at_start_and_stop(monkeypatch)
    looks = threading.Semaphore(0)

    def look_around() -> Generator[float, None, None]:
        while True:
            looks.release()
            yield 0.001

    thread = BackgroundThread(look_around(), "ours")
    thread.start()
    step(profiler(tmp_path, recording=Recording(with_stack=with_stack), active=1), 0)
    assert ["ours" in names for names in seen] == [not with_stack] * 2
    while looks.acquire(blocking=False):
        pass
    assert looks.acquire(timeout=10)  # it has continued
    thread.stop()


@pytest.mark.parametrize("dangerous", [True, False])
def test_functions_are_left_out_where_threads_of_others_can_crash_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dangerous: bool
) -> None:
    monkeypatch.setattr("lightning_perf.callbacks.recording.profiler.threads_are_dangerous", lambda: dangerous)
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="0 tqdm")
    thread.start()
    window = profiler(tmp_path, recording=Recording(with_stack=True), active=1, repeat=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step(window, 0)
        step(window, 1)
    end.set()
    thread.join()
    said = [str(each.message) for each in caught if "with_stack" in str(each.message)]
    assert len(said) == dangerous
    assert all("0 tqdm" in each for each in said)
    assert [bool(functions_of(path)) for path in window.files] == [not dangerous] * 2
    assert [read_trace(path).metadata.with_stack for path in window.files] == [None if dangerous else True] * 2


@pytest.mark.skipif(torch.__version__ < TorchVersion("2.15"), reason="torch records collections from 2.15 on")
def test_collections_are_recorded_next_to_functions(tmp_path: Path) -> None:
    window = profiler(tmp_path, recording=Recording(with_stack=True), active=1)
    start(window, 0)
    gc.collect()
    window.on_step_end()
    assert any(event["name"] == COLLECTION for event in events(window.files[0]))


def test_the_environment_of_the_user_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEARDOWN_CUPTI", "0")
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    step(profiler(tmp_path), 0)
    assert os.environ["TEARDOWN_CUPTI"] == "0"


def watch(listener: Callable[[], object]) -> WrappedMethods:
    watched = WrappedMethods()
    watched.listen(autograd_profile, "_prepare_trace", lambda *_, **__: listener())
    return watched


def record() -> None:
    with torchs():
        pass


def test_profilers_are_heard_before_they_prepare_until_removal() -> None:
    original = autograd_profile._prepare_trace
    heard: list[bool] = []
    watched = watch(lambda: heard.append(recorder_is_taken()))
    record()
    record()
    watched.restore()
    watched.restore()
    record()
    assert heard == [False, False]
    assert autograd_profile._prepare_trace is original


def test_removal_under_another_wrapper_leaves_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd_profile, "_prepare_trace", autograd_profile._prepare_trace)
    heard: list[str] = []
    below, above = (watch(functools.partial(heard.append, name)) for name in ("below", "above"))
    below.restore()
    record()
    assert heard == ["above"]
    above.restore()


class Recorded:
    """A profiler of torch 2.15."""

    def export_chrome_trace(self, path: str, cuda_graph_annotations: Any = None) -> None:
        pass


class Earlier:
    def export_chrome_trace(self, path: str) -> None:
        pass


def test_names_of_graph_kernels_are_exported_where_torch_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    named: dict[int, Any] = {}
    recorded: Any = Recorded()
    earlier: Any = Earlier()
    module = SimpleNamespace(get_kernel_annotations=lambda: named)
    monkeypatch.setattr(torch.cuda, "graph_annotations", module, raising=False)
    assert export_options(recorded) == {}, "torch's faster export stays"
    named[7] = [{"name": "attention"}]
    assert export_options(recorded) == {"cuda_graph_annotations": named}
    assert export_options(earlier) == {}
    monkeypatch.delattr(torch.cuda, "graph_annotations")
    assert export_options(recorded) == {}


def test_the_export_with_names_is_the_same_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch exports events in Python then. The kernels of graphs themselves need a GPU."""
    module = pytest.importorskip("torch.cuda.graph_annotations")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        torch.ones(8, 8) @ torch.ones(8, 8)
    if not recorded.profiler:
        pytest.skip("no recorder")
    plain = read_trace(export_trace(recorded, tmp_path, 0, 1))
    monkeypatch.setattr(module, "get_kernel_annotations", lambda: {7: [{"name": "attention"}]})
    options = export_options(recorded)
    assert options
    named = read_trace(export_trace(recorded, tmp_path, 0, 2, **options))
    operators = [plain.names[code] for code in plain.operators.name]
    assert "aten::mm" in operators
    assert [named.names[code] for code in named.operators.name] == operators
