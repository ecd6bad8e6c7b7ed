import pytest

from lightning_perf.compare.errors import InvalidRunsError
from lightning_perf.compare.verdicts.build import compare_arms
from lightning_perf.run_files.run_record import Outcome, Place
from tests.compare.support import write_run


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"outcome": None}, "interrupted"),
        ({"outcome": Outcome.FAILED}, "failed"),
        ({"outcome": Outcome.STOPPED}, "stopped"),
        ({"problems": ("throttled by heat", "process 77 on the device")}, "invalid: throttled by heat; process 77"),
    ],
)
def test_runs_that_do_not_count_are_left_out_with_their_reason(tmp_path, changes, reason):
    runs = {
        "a": [write_run(tmp_path / "a" / str(n)) for n in range(3)],
        "b": [write_run(tmp_path / "b" / str(n), **(changes if n == 0 else {})) for n in range(3)],
    }
    comparison = compare_arms(runs)
    assert [arm.used for arm in comparison.arms] == [3, 2]
    ((left_out, count),) = comparison.arms[1].left_out.items()
    assert left_out.startswith(reason)
    assert count == 1
    with pytest.raises(InvalidRunsError, match=f"b: no run is left to compare \\(1 {reason}"):
        compare_arms({"a": runs["a"], "b": runs["b"][:1]})


def test_warm_up_and_repeated_blocks_do_not_count(tmp_path):
    def run(name, block, attempt):
        place = Place("s", name, block, 0, attempt)
        return write_run(tmp_path / f"{name}-{block}-{attempt}", place=place, train__seed=block)

    # In the first attempt of block 1 the run of b failed: that of a is repeated with it.
    comparison = compare_arms(
        {
            "a": [run("a", 0, 0), run("a", 1, 0), run("a", 1, 1), run("a", 2, 0)],
            "b": [run("b", 0, 0), run("b", 1, 1), run("b", 2, 0)],
        }
    )
    assert comparison.blocked
    assert comparison.arms[0].left_out == {"warm-up": 1, "of a repeated block": 1}
    assert [arm.used for arm in comparison.arms] == [2, 2]


def test_a_block_of_another_study_with_the_same_number_is_another_block(tmp_path):
    def run(study, name, attempt):
        return write_run(tmp_path / f"{study}-{name}", place=Place(study, name, 1, 0, attempt))

    comparison = compare_arms({"a": [run("s", "a", 1)], "b": [run("t", "b", 0)]})
    assert [arm.left_out for arm in comparison.arms] == [{}, {}]
