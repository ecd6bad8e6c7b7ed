import pytest

from lightning_perf.compare.records.fairness import check_fairness
from tests.compare.support import FACTS


def run(**facts):
    return FACTS | {name.replace("__", "."): value for name, value in facts.items()}


def rows(check):
    return [(row.fact, row.baseline, row.candidate, row.allowed_by) for row in check.differences]


def test_equal_fingerprints_are_fair():
    check = check_fairness([run(), run()], [run()])
    assert check.differences == ()
    assert check.unchecked == ()


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("train.batch_size", 64),
        ("data.manifest", "d2"),
        ("flags.tf32_cudnn", "ieee"),
        ("version.torch", "2.15.1"),
        ("code.revision", "c2"),
        ("train.precision", "16-mixed"),
        ("train.seed", 2),
        ("model.initial_weights", "w2"),
        ("data.first_batch", "b2"),
        ("device.name", "another"),
    ],
)
def test_one_differing_fact_is_unfair_unless_it_is_named(fact, value):
    base, candidate = [run()], [run(**{fact.replace(".", "__"): value})]
    here = str(FACTS.get(fact, "not recorded"))
    check = check_fairness(base, candidate)
    assert rows(check) == [(fact, (here,), (str(value),), None)]
    assert check.unfair == check.differences
    for name in (fact, fact.partition(".")[0], fact.partition(".")[2]):
        for kind in ("treatment", "allow"):
            named = check_fairness(base, candidate, **{kind: [name]})
            assert named.unfair == ()
            assert rows(named) == [(fact, (here,), (str(value),), kind)]
    assert check_fairness(base, candidate, allow=["something"]).unfair


def test_what_differs_within_an_arm_is_unfair_too():
    check = check_fairness([run(), run(train__batch_size=64)], [run(), run(train__batch_size=64)])
    assert [(row.fact, row.baseline) for row in check.unfair] == [("train.batch_size", ("32", "64"))]


def test_a_batch_size_under_test_changes_the_first_batch_by_necessity():
    base, candidate = [run()], [run(train__batch_size=64, data__first_batch="b64")]
    assert [row.fact for row in check_fairness(base, candidate).unfair] == ["data.first_batch", "train.batch_size"]
    assert check_fairness(base, candidate, treatment=["batch_size"]).unfair == ()


def test_workers_under_test_bring_their_own_settings():
    base = [run(data__num_workers=0, data__persistent_workers=False)]
    candidate = [run(data__num_workers=4, data__persistent_workers=True, data__prefetch_factor=2)]
    assert len(check_fairness(base, candidate).unfair) == 3
    assert check_fairness(base, candidate, treatment=["num_workers"]).unfair == ()


def test_seeds_agree_as_a_set():
    base = [run(train__seed=seed) for seed in (1, 2, 3)]
    assert check_fairness(base, [run(train__seed=seed) for seed in (3, 1, 2)]).unfair == ()
    assert check_fairness(base, [run(train__seed=seed) for seed in (2, 3)]).unfair == ()
    assert check_fairness(base, [run(train__seed=seed) for seed in (1, 1, 3)]).unfair
    assert check_fairness(base, [run(train__seed=seed) for seed in (3, 4)]).unfair


def test_in_blocks_seeds_agree_block_by_block():
    def unfair(ours, theirs):
        arms = ([run(train__seed=seed) for seed in seeds] for seeds in (ours, theirs))
        return check_fairness(*arms, blocks=(range(len(ours)), range(len(theirs)))).unfair

    assert unfair((1, 2, 3), (1, 2, 3)) == ()
    assert unfair((1, 2, 3), (3, 2, 1))
    assert unfair((1, 2, 3), (1, 2)) == ()


def test_equal_in_python_is_not_the_same_setting():
    assert check_fairness([run(flags__x=1)], [run(flags__x=True)]).unfair
    assert check_fairness([run(flags__x=1)], [run(flags__x="1")]).unfair


def test_a_fact_that_only_one_arm_recorded_is_a_difference():
    (row,) = check_fairness([run()], [run(flags__new=False)]).unfair
    assert (row.baseline, row.candidate) == (("not recorded",), ("False",))


def test_essential_facts_that_no_run_recorded_are_named():
    check = check_fairness([run(data__manifest=None)], [run(data__manifest=None)])
    assert check.unchecked == ("data.manifest",)
    assert check.differences == ()


@pytest.mark.parametrize(
    ("here", "there", "reason"),
    [
        ("not hashed, because it is large", "m1", "not hashed, because it is large"),
        ("not hashed, because it is large", "not hashed, because it is large", "not hashed, because it is large"),
        ("not hashed, because it is large", None, "not hashed, because it is large"),
        ("0123456789abcdef", "0123456789abcdef-sampled-2", "the runs hashed it in different ways"),
        ("0123456789abcdef-sampled-2", "0123456789abcdef-sampled-spread-2", "the runs hashed it in different ways"),
    ],
)
def test_a_hash_that_is_missing_or_of_another_kind_is_unknown_and_neither_equal_nor_different(here, there, reason):
    check = check_fairness([run(data__manifest=here)], [run(data__manifest=there)])
    assert (check.differences, check.unknown) == ((), (f"data.manifest ({reason})",))


def test_samples_of_the_same_kind_are_compared():
    base, other = [run(data__manifest="a1-sampled-2")], [run(data__manifest="b1-sampled-2")]
    assert [row.fact for row in check_fairness(base, other).unfair] == ["data.manifest"]
    assert check_fairness(base, base).unknown == ()


def test_the_unfair_rows_come_first():
    check = check_fairness([run()], [run(version__torch="x", code__revision="y")], allow=["code"])
    assert [row.fact for row in check.differences] == ["version.torch", "code.revision"]


def test_what_is_under_test_is_one_setting_in_all_runs_of_an_arm():
    base = [run(), run()]
    mixed = [run(train__precision="16-mixed"), run()]
    check = check_fairness(base, mixed, treatment=["precision"])
    assert [(row.fact, row.candidate) for row in check.unfair] == [("train.precision", ("16-mixed", "32-true"))]
    assert check_fairness(base, mixed, treatment=["precision"], allow=["precision"]).unfair == ()
    seeds = [run(train__seed=2), run(train__seed=3)]
    assert check_fairness(base, seeds, treatment=["seed"]).unfair == ()


def test_variables_are_recorded_where_they_are_set():
    (row,) = check_fairness([run()], [run(env__OMP_NUM_THREADS="4")]).unfair
    assert (row.baseline, row.candidate) == (("not set",), ("4",))
