import pytest

from lightning_perf.analysis.kernels.kernel_names import RULES, kernel_arithmetic, spelled_arithmetic


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.example[:40])
def test_every_rule_is_the_first_that_takes_its_own_example(rule):
    first = next(r for r in RULES if r.pattern.search(rule.example))
    assert first is rule
    assert rule.source.startswith("https://")
    assert kernel_arithmetic(rule.example).family == rule.family


def test_what_nothing_is_spelled_like_is_refused():
    with pytest.raises(KeyError):
        spelled_arithmetic("q8")
