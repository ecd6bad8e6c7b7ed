"""Calls of a step as one module: its data flow against the real network's, and its estimate by hand."""

import pickle
import sysconfig
from pathlib import Path

import pytest
import torch

from lightning_perf.analysis.model.operators import OperatorCall, OperatorCalls
from lightning_perf.machine.environment import missing_cpp_compiler
from lightning_perf.probe.estimate import COMPILE_ERRORS, estimate_compile
from lightning_perf.probe.replay.call_graph import CallGraph, build_call_graph, time_compiled
from lightning_perf.probe.replay.measure import Pool
from lightning_perf.probe.replay.messages import CURRENT, CompiledTimes
from lightning_perf.probe.run import ProbeWorker, probe_trace
from tests.probe.recorded import NETWORKS, Counted, calls_of, recorded_training, task_of


def graph_of(name: str) -> CallGraph:
    task = task_of(calls_of(name))
    bound = {place: settings[CURRENT] for place, settings in enumerate(pickle.loads(task.bound))}
    return build_call_graph(task.calls.order, bound, Pool("cpu", 1 << 28))


# In the module, the weight of a convolution is always a parameter, even if a batch norm computes it.
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "standardized"])
def test_the_calls_end_in_the_loss_like_those_of_the_network(name: str) -> None:
    made = graph_of(name)
    outputs = made.module(*made.inputs)
    assert [tuple(output.shape) for output in outputs] == [()], "a result that nobody reads: the flow is wrong"
    with Counted() as counted:
        (loss,) = made.module(*made.inputs)
        gradients = torch.autograd.grad(loss, made.leaves, allow_unused=True)
    assert counted.has_the_work_of(name)
    assert sum(gradient is not None for gradient in gradients) == sum(
        parameter.requires_grad for parameter in NETWORKS[name][0]().parameters()
    )


def test_both_modules_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    task = task_of(calls_of("attention"))
    times = time_compiled(task)
    assert times.places == task.calls.order
    assert len(times.eager_ns) == len(times.compiled_ns) >= 4
    assert min(*times.eager_ns, *times.compiled_ns) > 0


HAS_HEADERS = Path(sysconfig.get_path("include"), "Python.h").exists()


@pytest.mark.skipif(missing_cpp_compiler() or not HAS_HEADERS, reason="needs a C++ compiler and Python's headers")
def test_a_recording_is_compiled_in_a_worker_process() -> None:
    trace = recorded_training("attention")
    with ProbeWorker() as worker:
        probe = probe_trace(trace, worker, 1.0, compiles=True)
    change = probe.change("compile")
    assert change is not None, probe.skipped
    assert probe.compile_s is not None
    assert change.low_ns < change.saving_ns < change.high_ns
    assert change.measured_ns == pytest.approx(probe.operator_ns, rel=0.2)


def test_a_machine_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    with ProbeWorker() as worker:
        probe = probe_trace(recorded_training("attention"), worker, 0.5, compiles=True)
    assert probe.change("compile") is None
    assert probe.changes
    assert "install g++" in probe.skipped["torch.compile"]


def test_the_estimate_by_hand() -> None:
    # 24 µs of calls per step, of which the compiler leaves three quarters. Python takes 10 µs in the forward pass.
    call = OperatorCall("aten::linear", "", "", "", "", 4, 40_000, 56_000, has_backward=True)
    calls = OperatorCalls(4, False, None, (call,), (0,), (), 0)
    change = estimate_compile(CompiledTimes((0,), (40e3,) * 5, (30e3,) * 5, 20.0), calls, python_ns=10e3)
    error = COMPILE_ERRORS.down * 6e3 + COMPILE_ERRORS.of_time * 24e3
    assert change.measured_ns == pytest.approx(24e3)
    assert change.low_ns == pytest.approx(6e3 - error)
    assert change.high_ns == pytest.approx(6e3 + error + 10e3)
