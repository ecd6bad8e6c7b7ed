"""The summary of made compilations, and the comparison of two fits."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from lightning_perf.analysis.compilation import CompileReport, summarize_compilations
from lightning_perf.analysis.diff import compare_compilations
from lightning_perf.run_files.fit.compilations import COMPILATIONS, Compilation
from tests.findings.accounts import S
from tests.findings.compilations import BROKEN, CALLS, COSTLY, SHAPES, SKIPPED, again, compilation, report

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
