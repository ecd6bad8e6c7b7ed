"""The adapter to the installed torch: each test plants one reason to compile, and the adapter names it."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.utils import fresh_cache

from lightning_perf.analysis.compilation import failed_guard
from lightning_perf.callbacks.compilation.torch_compiler import TorchCompiler
from lightning_perf.run_files.fit.compilations import Compilation

HERE = __file__


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(function: Any, *calls: tuple[Any, ...], backend: str = "eager") -> list[Compilation]:
    """Compile a function, call it, and return what the adapter reads."""
    compiler = TorchCompiler(time.time_ns())
    fast = torch.compile(function, backend=backend)
    for arguments in calls:
        fast(*arguments)
    return compiler.new_compilations()


def batch(size: int) -> torch.Tensor:
    return torch.zeros(size, 8)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_compilation_has_its_function_and_time() -> None:
    began_ns = time.perf_counter_ns()
    (only,) = compiled(double, (batch(4),), (batch(4),))
    assert (only.function, only.file, only.line) == ("double", HERE, double.__code__.co_firstlineno)
    assert only.kind == "forward"
    assert only.compiled
    assert only.recompile_reasons == ()
    assert only.breaks == ()
    assert 0 < only.time_ns <= time.perf_counter_ns() - began_ns
    assert only.backend_ns is not None
    assert only.backend_ns <= only.time_ns
    assert only.guards is not None
    assert only.guard_ns is not None
    assert only.compile_id.endswith("/0")


def test_an_item_breaks_the_graph() -> None:
    def threshold(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if y.sum().item() > 0:  # the break
            y = y * 2
        return y

    found = compiled(threshold, (batch(4),))
    first, rest = found[0], found[1]
    (at,) = first.breaks
    assert (at.file, at.line) == (HERE, threshold.__code__.co_firstlineno + 2)
    assert at.code.endswith("# the break")
    assert "item" in at.reason
    assert "capture_scalar_outputs" in at.hint
    assert rest.function.startswith("torch_dynamo_resume_in_threshold_at_")
    assert rest.breaks == ()


class Scaled(nn.Module):
    scale = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def call_with(value: Any, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = x * value["scale"] if isinstance(value, dict) else value(x)
    return result


def rescaled() -> Iterator[Callable[[], Any]]:
    module = Scaled()
    fast = torch.compile(module, backend="eager")
    for scale in (1, 2):
        module.scale = scale
        yield lambda: fast(batch(4))


def in_another_mode() -> Iterator[Callable[[], Any]]:
    fast = torch.compile(double, backend="eager")
    yield lambda: fast(batch(4))
    with torch.no_grad():
        yield lambda: fast(batch(4))


def calls(function: Any, *arguments: tuple[Any, ...]) -> Iterator[Callable[[], Any]]:
    fast = torch.compile(function, backend="eager")
    for each in arguments:
        yield partial(fast, *each)


CAUSES: dict[str, tuple[Callable[[], Iterator[Callable[[], Any]]], str, str]] = {
    "shape": (lambda: calls(double, (batch(4),), (batch(6),), (batch(7),)), "shape", "expected 4, actual 6"),
    "value": (lambda: calls(call_with, ({"scale": 2}, batch(4)), ({"scale": 3}, batch(4))), "value", "scale"),
    "object": (lambda: calls(call_with, (nn.ReLU(), batch(4)), (nn.Sigmoid(), batch(4))), "object", ""),
    "attribute": (rescaled, "value", "scale"),
    "mode": (in_another_mode, "mode", ""),
}


@pytest.mark.parametrize("change", CAUSES)
def test_the_guard_that_failed_is_named(change: str) -> None:
    make, cause, text = CAUSES[change]
    compiler = TorchCompiler(time.time_ns())
    for call in make():
        call()
    first, second = compiler.new_compilations()
    assert first.recompile_reasons == ()
    guard = failed_guard(second.recompile_reasons)
    assert guard.cause == cause
    assert text in guard.text
    assert (change != "shape") or (guard.name, guard.dimension) == ("x", 0)
    assert (change != "attribute") or guard.code == "return x * self.scale"


def test_all_versions_are_asked_for_their_reason() -> None:
    compiler = TorchCompiler(time.time_ns())
    fast = torch.compile(double, backend="eager", dynamic=False)
    looks: list[Compilation] = []
    compiler.listen(lambda: looks.extend(compiler.new_compilations()))
    with torch.no_grad():
        fast(batch(4))
    fast(batch(4))
    with torch.no_grad():
        fast(batch(6))
    looks += compiler.new_compilations()
    compiler.close()
    # The version with gradients fails in the mode, the other one in the shape.
    assert [failed_guard(each.recompile_reasons).cause for each in looks[1:]] == ["mode", "shape"]
    assert len(looks[2].recompile_reasons) == 2


def test_torch_gives_up_at_the_limit() -> None:
    def scaled(x: torch.Tensor, factor: str) -> torch.Tensor:
        return x * len(factor) if factor else x

    with torch._dynamo.config.patch(recompile_limit=2):
        found = compiled(scaled, *((batch(4), text) for text in ("a", "bb", "ccc", "dddd")))
    last = found[-1]
    assert [each.compiled for each in found] == [True, True, False]
    assert last.limit_reached
    assert last.function == "scaled"  # torch does not name it again
    assert last.breaks == ()
    assert failed_guard(last.recompile_reasons).cause == "value"


def test_a_backward_graph_belongs_to_its_function() -> None:
    weight = torch.ones(8, requires_grad=True)

    def weighted(x: torch.Tensor) -> torch.Tensor:
        return (x * weight).sin()

    compiler = TorchCompiler(time.time_ns())
    torch.compile(weighted, backend="aot_eager")(batch(4)).sum().backward()
    found = compiler.new_compilations()
    assert {each.function for each in found} == {"weighted"}
    assert found[0].kind == "forward"
    assert all(each.kind == "backward" for each in found[1:])


def test_earlier_compilations_are_left_out() -> None:
    compiled(double, (batch(4),))
    compiler = TorchCompiler(time.time_ns())
    assert compiler.new_compilations() == []
    torch.compiler.reset()
    torch.compile(double, backend="eager")(batch(4))
    assert [each.function for each in compiler.new_compilations()] == ["double"]
    assert compiler.new_compilations() == []


def test_a_look_at_each_start_misses_none_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo.utils, "_compilation_metrics", deque(maxlen=2))  # torch keeps 64
    functions = (double, lambda x: x + 1, lambda x: x + 2, lambda x: x + 3)
    compiler = TorchCompiler(time.time_ns())
    found: list[Compilation] = []
    compiler.listen(lambda: found.extend(compiler.new_compilations()))
    x = batch(4)
    for function in functions:
        torch.compile(function, backend="eager")(x)
    found += compiler.new_compilations()
    assert [each.function for each in found] == ["double", *["<lambda>"] * 3]
    assert len({each.compile_id for each in found}) == 4
    compiler.close()
    handler = sys.modules["torch._dynamo.callback"].callback_handler
    assert handler.start_callbacks == []


def test_without_the_compiler_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch._dynamo.utils", "torch._dynamo.callback"):
        monkeypatch.setitem(sys.modules, name, None)
    compiler = TorchCompiler(0)  # an import would fail
    compiler.listen(lambda: None)
    assert compiler.new_compilations() == []
    compiler.close()


def test_missing_fields_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = SimpleNamespace(compile_id="0/0", duration_us=7)
    odd = SimpleNamespace(compile_id=None, start_time_us="soon", guard_count=-3, recompile_reason=5, co_firstlineno="x")
    utils = SimpleNamespace(get_compilation_metrics=lambda: [bare, odd])
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    compiler = TorchCompiler(0)
    first, second = compiler.new_compilations()
    assert first == Compilation("0/0", "forward", "before training", None, False, 7000)
    assert (second.compile_id, second.line, second.guards, second.recompile_reasons) == ("", 0, None, ("5",))


def test_skipped_cuda_graphs_without_a_compilation_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counters: dict[str, dict[str, int]] = {"inductor": {"cudagraph_skips": 1}}
    named = SimpleNamespace(compile_id="0/0", cudagraph_skip_reason="skipping cudagraphs due to cpu device (x)")
    metrics: list[Any] = []
    utils = SimpleNamespace(get_compilation_metrics=lambda: metrics, counters=counters)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    compiler = TorchCompiler(0)
    assert compiler.new_compilations() == []
    metrics.append(named)
    counters["inductor"]["cudagraph_skips"] = 2
    assert [each.cudagraph_skip for each in compiler.new_compilations()] == [named.cudagraph_skip_reason]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    counters["inductor"]["cudagraph_skips"] = 3
    (late,) = compiler.new_compilations()
    assert "TORCH_LOGS=cudagraphs" in late.cudagraph_skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    metrics.append(SimpleNamespace(compile_id="1/0"))
    counters["inductor"]["cudagraph_skips"] = 4
    (cpu,) = compiler.new_compilations()
    assert (cpu.compile_id, "finds no GPU" in cpu.cudagraph_skip) == ("1/0", True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_inductor_reports_its_time_its_cache_and_skipped_graphs() -> None:
    compiler = TorchCompiler(time.time_ns())
    with fresh_cache():
        torch.compile(double, mode="reduce-overhead")(batch(4))
    (only,) = compiler.new_compilations()
    assert (only.function, only.cache_hits, only.cache_misses) == ("double", 0, 1)
    assert only.backend_ns is not None
    assert only.backend_ns > only.time_ns / 2
    if not torch.cuda.is_available():
        assert "finds no GPU" in only.cudagraph_skip
