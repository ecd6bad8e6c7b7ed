"""Every rule about compilations: with its problem, just below its threshold, and in a fit that compiles well."""

from pathlib import Path

import pytest

from lightning_perf.analysis.compilation import CompileReport
from lightning_perf.findings.finding import Finding
from lightning_perf.findings.whole_run import find_in_fit
from lightning_perf.report.sections.report import short_blocks
from lightning_perf.run_files.fit.account import account_paths
from lightning_perf.run_files.fit.compilations import GraphBreak
from tests.findings import compilations
from tests.findings.accounts import STEPS_MADE, S, fit_time
from tests.findings.compilations import BROKEN, CALLS, COSTLY, ITEM, SHAPES, SKIPPED, again, compilation
from tests.findings.compilations import report as made
from tests.findings.recordings import saving_of
from tests.support.shown import console_text


def kinds(report: CompileReport) -> list[str]:
    return [finding.kind for finding in find_in_fit(None, compilation=report)]


def one(report: CompileReport) -> Finding:
    (finding,) = find_in_fit(None, compilation=report)
    assert finding.per == "fit"
    assert finding.rank == 0
    return finding


def test_a_fit_that_compiles_once_and_fast_has_no_finding() -> None:
    assert kinds(made(compilation(seconds=0.9))) == []
    assert find_in_fit(None) == ()


def test_recompiles_for_a_shape() -> None:
    finding = one(made(*SHAPES))
    # Two of 4 s. The first compilation of 2 s is below 3 % of the fit.
    assert finding.kind == "recompiles"
    assert saving_of(finding) == (0.0, pytest.approx(8000))
    assert "2 recompilations: 8.00 s (5.3 % of the fit)" in finding.title
    assert "in steps 7 to 90" in finding.evidence[0]  # one row for all sizes of the same input
    assert "mark_dynamic(x, 1)" in finding.action
    assert "drop_last=True" in finding.action


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("self.scale == 2 # return x * self.scale", "allow_unspec_int_on_nn_module"),
        ("tensor 'x' stride mismatch at index 0. expected 8, actual 1", "contiguous"),
        ("___check_obj_id(fn, 1405), type=<class 'function'>", "outside of the loop"),
        ("tensor 'x' rank mismatch. expected 2, actual 1", "same number of dimensions"),
        ("2 <= x.size()[0]", "Pad inputs"),
        ("something new", "TORCH_LOGS=recompiles"),
    ],
)
def test_recompiles_have_a_fix_for_each_cause(reason: str, fix: str) -> None:
    assert fix in one(made(compilation(seconds=1.0), again(1, reason, step=3, seconds=8.0))).action


def test_a_version_for_validation_is_no_recompile() -> None:
    report = made(compilation(seconds=1.0), again(1, "GLOBAL_STATE changed: grad_mode", step=3, seconds=3.4))
    assert report.recompilations == 1
    assert report.avoidable_ns == 0
    assert kinds(report) == []


def test_recompiles_below_the_threshold() -> None:
    shape = "tensor 'x' size mismatch at index 0. expected 4, actual 5"
    assert kinds(made(compilation(seconds=0.5), again(1, shape, step=3, seconds=4.4))) == []  # under 3 % of 150 s
    assert kinds(made(compilation(seconds=0.5), again(1, shape, step=3, seconds=4.6))) == ["recompiles"]
    assert kinds(made(compilation(seconds=0.5), again(1, shape, step=3, seconds=0.9), fit_s=2.0)) == []  # under 1 s


def test_the_limit_is_always_a_finding() -> None:
    last = again(8, "L['n'] == 7", step=9, seconds=0.001, limit_reached=True, compiled=False)
    finding = one(made(compilation(seconds=0.5), last))
    assert finding.severity == "high"
    assert "gave up on forward (model.py:24)" in finding.evidence[1]


def test_compile_cost() -> None:
    finding = one(made(*COSTLY))
    assert finding.kind == "compile-cost"
    assert finding.title == "torch.compile takes 40.0 s (26.7 % of the fit)"
    assert finding.saving_high_ms == pytest.approx(40_000)
    assert any("0 of 2 graphs" in line for line in finding.evidence)
    assert any(f"{40_000 / STEPS_MADE:.1f} ms per step" in line for line in finding.evidence)
    assert "TORCHINDUCTOR_CACHE_DIR" in finding.action


def test_compile_cost_is_without_avoidable_recompilations() -> None:
    report = made(*COSTLY, *SHAPES[1:])
    costs = {finding.kind: finding.saving_high_ms for finding in find_in_fit(None, compilation=report)}
    assert costs == {"compile-cost": pytest.approx(40_000), "recompiles": pytest.approx(8000)}
    assert sum(map(float, filter(None, costs.values()))) == pytest.approx(report.time_ns / 1e6)


def test_compile_cost_replaces_a_first_step_that_compiles() -> None:
    compiling = fit_time({("first step", "forward"): (45.0, 1)}, compile_ns=40 * S)
    loading = fit_time({("first step", "forward"): (95.0, 1)}, compile_ns=40 * S)
    assert [each.kind for each in find_in_fit(compiling, compilation=made(*COSTLY))] == ["compile-cost"]
    assert {each.kind for each in find_in_fit(loading, compilation=made(*COSTLY))} == {
        "compile-cost",
        "slow-first-step",
    }
    assert [each.kind for each in find_in_fit(compiling, compilation=made(*SHAPES))] == [
        "slow-first-step",
        "recompiles",
    ]


def test_graph_breaks() -> None:
    finding = one(made(*BROKEN, calls=CALLS))
    assert (finding.kind, finding.saving_high_ms) == ("graph-breaks", None)
    assert "model.py:31: if scale.item() > 1:" in finding.evidence[0]
    assert "1 time per step" in finding.evidence[0]
    assert "120 µs per step" in finding.evidence[0]  # 600 µs in 5 steps
    assert ".item()" in finding.action


def test_a_graph_break_in_validation_only_is_no_finding() -> None:
    assert kinds(made(compilation(seconds=0.5, moment="between steps", breaks=(ITEM,)))) == []


@pytest.mark.parametrize(
    ("reason", "hint", "fix"),
    [
        ("Data-dependent branching", "", "torch.where"),
        (
            "Attempted to call function marked as skipped",
            "Use another function.",
            "torch's hint: Use another function.",
        ),
        ("Something new", "", "TORCH_LOGS=graph_breaks"),
    ],
)
def test_graph_breaks_have_a_fix(reason: str, hint: str, fix: str) -> None:
    assert fix in one(made(compilation(seconds=0.5, breaks=(GraphBreak(reason, hint),)))).action


def test_cudagraph_skips() -> None:
    finding = one(made(*SKIPPED))
    assert (finding.kind, finding.severity) == ("cudagraph-skips", "moderate")
    assert finding.title == "2 compiled graphs run without a CUDA graph"
    assert len(finding.evidence) == 2
    assert kinds(made(SKIPPED[0])) == ["cudagraph-skips"]
    assert "clone()" in one(made(SKIPPED[0])).action
    assert "device=x.device" in one(made(SKIPPED[1])).action


def test_findings_without_a_known_fit_have_no_saving() -> None:
    finding = one(made(*COSTLY, fit_s=None))
    assert finding.saving_high_ms is None
    assert finding.title == "torch.compile takes 40.0 s"


def test_the_short_report_names_them_without_an_account(tmp_path: Path) -> None:
    compilations.recompiling(tmp_path)
    for path in account_paths(tmp_path):
        path.unlink()
    import lightning_perf

    report = lightning_perf.analyze(tmp_path)
    assert report.fit_time is None
    assert report.compilation is not None
    assert report.compilation.fit_ns == 60 * S // 10  # 60 steps of 100 ms
    assert "[recompiles]" in console_text(short_blocks(report, None))
