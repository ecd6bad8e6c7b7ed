"""The summary of made compilations, and the comparison of two fits."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from lightning_perf.analysis.compilation import (
    CompiledFunction,
    CompileReport,
    compiled_calls,
    failed_guard,
    read_guard,
    summarize_compilations,
)
from lightning_perf.analysis.diff import compare_compilations
from lightning_perf.run_files.fit.compilations import COMPILATIONS, Compilation
from tests.findings.accounts import S
from tests.findings.compilations import BROKEN, CALLS, COSTLY, SHAPES, SKIPPED, again, compilation, report
from tests.support.known import known
from tests.support.trace_builder import TraceBuilder

ALL = (*SHAPES, *COSTLY, *BROKEN, *SKIPPED)


def test_the_moments_add_up() -> None:
    moments = ("before training", "first step", "step", "between steps")
    made = [compilation(f"0/{n}", 2.0**n, moment=moment) for n, moment in enumerate(moments)]
    found = report(*made)
    assert (found.before_ns, found.first_step_ns, found.step_ns, found.between_ns) == (S, 2 * S, 4 * S, 8 * S)
    assert found.time_ns == 15 * S == sum(frame.time_ns for frame in found.frames)
    assert found.backend_ns == 12 * S


def test_a_backward_graph_counts_for_its_version() -> None:
    late = compilation("0/1", 1.0, kind="backward", moment="step", step=7, backend_ns=None)
    (frame,) = report(*SHAPES[:2], late).frames
    assert (frame.compilations, frame.time_ns, frame.recompile_ns) == (2, 7 * S, 5 * S)
    assert frame.recompilations[0].time_ns == 5 * S
    (earlier,) = report(*SHAPES[:2]).frames
    assert known(frame.backend_ns) == known(earlier.backend_ns) + S  # all of a backward graph


def test_recompilations_are_grouped_by_what_changed() -> None:
    values = [again(n, f"self.scale == {n} # x * self.scale", step=10 * n) for n in (3, 4)]
    (frame,) = report(*SHAPES, *values).frames
    groups = [(each.cause, each.count, each.first_step, each.last_step) for each in frame.recompilations]
    assert sorted(groups) == [("shape", 2, 7, 90), ("value", 2, 30, 40)]


def test_figures_per_step_come_from_the_recording() -> None:
    recorded = compilation("0/0", 1.0, recorded=True)
    found = report(replace(BROKEN[0], recorded=True, time_ns=S), BROKEN[1], calls=CALLS)
    assert (found.check_ns_per_step, found.checks_per_step) == (200_000, 2)
    assert found.recorded_ns_per_step == 0.4 * S
    first, after = found.frames
    assert (first.calls_per_step, first.check_ns_per_step) == (1, 80_000)
    assert (after.resumed_at, after.calls_per_step, after.check_ns_per_step) == (31, 1, 120_000)
    assert (found.breaks[0].calls_per_step, found.breaks[0].check_ns_per_step) == (1, 120_000)
    assert report(recorded).check_ns_per_step is None


def test_figures_that_torch_does_not_report_are_none() -> None:
    bare = Compilation("0/0", "forward", "step", 1, False, 5)
    found = report(bare)
    assert (found.backend_ns, found.cache_hits, found.cache_misses) == (None, None, None)
    assert found.frames[0].guards is None


def test_no_compilations() -> None:
    assert summarize_compilations([]) is None


def test_a_summary_survives_json_and_a_file(tmp_path: Path) -> None:
    found = report(*ALL, calls=CALLS)
    assert msgspec.json.decode(msgspec.json.encode(found), type=CompileReport) == found
    path = COMPILATIONS.path(tmp_path, 0)
    COMPILATIONS.append(path, *ALL)
    with path.open("ab") as file:
        file.write(b'{"compile_id":"0/9","kind":"for')  # the process was killed
    assert COMPILATIONS.read(path) == ALL


@pytest.mark.parametrize("compiled_first", [False, True])
def test_steps_until_compilation_pays(compiled_first: bool) -> None:
    sides, steps = [None, report(*COSTLY)], [10e6, 7e6]  # 40 s, and it saves 3 ms per step
    if compiled_first:
        sides, steps = sides[::-1], steps[::-1]
    found = compare_compilations(*sides, step_before_ns=steps[0], step_after_ns=steps[1])
    assert "saves 3.00 ms per step (median) and pays after 13,334 steps" in found
    assert "The compiled fit has 1,001." in found


def test_compilations_that_never_pay_or_are_in_both_fits() -> None:
    equal = {"step_before_ns": 7e6, "step_after_ns": 7e6}
    assert "does not pay" in compare_compilations(None, report(*COSTLY), **equal)
    found = compare_compilations(report(*SHAPES), report(SHAPES[0]), **equal)
    assert found == "Compilation took 10.0 s (2 recompilations) before, and 2.00 s after."
    assert compare_compilations(None, None) == ""


CHECK = "TorchDynamo Cache Lookup"


def region(number: str) -> str:
    return f"Torch-Compiled Region: {number}"


def test_checks_belong_to_the_next_call_on_their_thread() -> None:
    builder = TraceBuilder()
    for start in builder.steps(2, 1000):
        builder.op(CHECK, start + 10, 5).op(region("0/0"), start + 20, 400)
        builder.op(CHECK, start + 100, 7).op(region("3/1"), start + 110, 50)  # after a break, inside the first region
        builder.op(CHECK, start + 600, 2)  # of a function that runs uncompiled
        builder.op(CHECK, start + 605, 100, thread=2000).op(region("0/1"), start + 710, 10, thread=2000)
    calls = known(compiled_calls(builder.build()))
    assert (calls.steps, calls.checks, calls.check_ns, calls.compile_ns) == (2, 8, 2 * 114_000, 0)
    assert calls.functions == (CompiledFunction("0", 4, 2 * 105_000), CompiledFunction("3", 2, 2 * 7_000))


def test_compilations_in_the_recording_are_timed() -> None:
    builder = TraceBuilder().step(0, 0, 1000).step(1, 1000, 1000)
    builder.op(CHECK, 10, 5).op("entire_frame_compile", 20, 300).op("_compile.compile_inner (dynamo_timed)", 21, 298)
    builder.op(region("0/0"), 350, 10).op("entire_backward_compile", 400, 50)
    calls = known(compiled_calls(builder.build()))
    assert calls.compile_ns == 350_000
    assert calls.functions == (CompiledFunction("0", 1, 5_000),)


def test_a_region_without_a_check() -> None:
    calls = known(
        compiled_calls(TraceBuilder().step(0, 0, 100).op(region("0/0"), 10, 5).op(region("0/0"), 20, 5).build())
    )
    assert calls.functions == (CompiledFunction("0", 2, 0),)


def test_one_check_is_not_counted_for_two_regions() -> None:
    builder = TraceBuilder().step(0, 0, 100).op(CHECK, 5, 2).op(region("0/0"), 10, 5).op(region("1/0"), 20, 5)
    calls = known(compiled_calls(builder.build()))
    assert [(each.frame, each.check_ns) for each in calls.functions] == [("0", 2_000), ("1", 0)]


# Printed by torch 2.15 for functions that changed one thing between two calls.
REASONS = [
    ("shape", "0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5"),
    ("shape", "0/0: tensor 'x' rank mismatch. expected 2, actual 1"),
    ("shape", "0/1: 2 <= x.size()[0] # return x * 2 # model.py:25 in forward (user code shown is first use of it"),
    ("shape", "0/0: (x.size()[0] % 4) == 0 # if x.shape[0] % 4 == 0: # model.py:27 in forward"),
    ("tensor", "0/0: tensor 'x' dtype mismatch. expected Float, actual Double"),
    ("tensor", "0/0: tensor 'x' stride mismatch at index 0. expected 8, actual 1"),
    ("value", "0/0: s == 'a' # if s == 'a': # model.py:17 in forward"),
    ("value", "0/0: G['SCALE'] == 1 # return x * SCALE # model.py:49 in forward"),
    ("value", "0/0: ___dict_contains('a', d) # if 'a' in d: # model.py:16 in forward (HINT: Dictionary d must contain"),
    ("object", "0/0: ___check_obj_id(fn, 1405), type=<class 'function'> # def f(fn, x): # model.py:45 in f"),
    ("object", "0/0: ___check_type_id(mod, 9490), type=<class 'torch.nn.modules.linear.Linear'> # model.py:42 in g"),
    ("object", "0/0: a is b # lambda a, b: a + b # model.py:47 in <lambda>"),
    ("mode", "0/0: GLOBAL_STATE changed: grad_mode "),
    ("mode", "0/0: GLOBAL_STATE changed: autocast(cpu)_enabled "),
    ("mode", "0/0: fn._modules['1'].training == True # return F.dropout(input, self.p, self.training)"),
    ("mode", "0/0: tensor 'x' requires_grad mismatch. expected requires_grad=1"),
    ("other", "Unable to find recompilation reasons"),
    ("other", ""),
]


@pytest.mark.parametrize(("cause", "reason"), REASONS)
def test_the_cause_of_each_reason(cause: str, reason: str) -> None:
    assert read_guard(reason).cause == cause


def test_the_condition_and_the_line() -> None:
    guard = read_guard(
        "12/3: self.scale == 1    # return x * self.scale # model.py:9 in forward (HINT: torch considers"
    )
    assert (guard.text, guard.code) == ("self.scale == 1", "return x * self.scale")


def test_a_place_in_torch_is_no_line_of_the_program() -> None:
    guard = read_guard("0/2: 8*(x.size()[3] // 2) <= 4096 # (_inductor/codegen/cpp.py:2397 in need_use_acc_helper)")
    assert (guard.cause, guard.text, guard.code) == ("shape", "8*(x.size()[3] // 2) <= 4096", "")


def test_a_shape_says_more_than_a_mode() -> None:
    reasons = [reason for _, reason in REASONS]
    assert failed_guard(reversed_list := reasons[::-1]).cause == "shape"
    assert failed_guard(
        [reason for reason in reversed_list if "size" not in reason and "rank" not in reason]
    ).cause == ("value")
    assert failed_guard([]).text == "not reported"


def test_hostile_reasons_are_read_in_time() -> None:
    for reason in ("(" * 100_000, "tensor '" + "a " * 50_000, "tensor 'x' " + "size " * 50_000, "0/" * 50_000):
        assert read_guard(reason).cause
