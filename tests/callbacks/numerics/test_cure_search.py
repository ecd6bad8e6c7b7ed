"""The search for layers to keep in FP32, against all subsets."""

from __future__ import annotations

import itertools

import pytest
from torch import nn

from lightning_perf.callbacks.numerics.bad_run import CureSearch


def make_net() -> nn.Module:
    block = lambda: nn.ModuleDict({"attention": nn.Linear(1, 1), "mlp": nn.Sequential(nn.Linear(1, 1), nn.ReLU())})  # noqa: E731
    return nn.ModuleDict({"stem": nn.Linear(1, 1), "first": block(), "second": block(), "head": nn.Linear(1, 1)})


LEAVES = [name for name, layer in make_net().named_modules() if name and not list(layer.children())]


def covered(names: tuple[str, ...]) -> set[str]:
    return {leaf for leaf in LEAVES for name in names if leaf == name or leaf.startswith(f"{name}.")}


@pytest.mark.parametrize("needed", [*itertools.combinations(LEAVES, 1), *itertools.combinations(LEAVES, 2)])
@pytest.mark.parametrize("suspect", ["", "first.mlp.1", "head"])
def test_exactly_the_needed_layers_are_found(needed, suspect):
    search = CureSearch(make_net(), lambda names: set(needed) <= covered(names))
    assert search.find(suspect) == needed
    assert search.trials <= 40


def test_a_container_with_operators_of_its_own_is_kept_whole():
    search = CureSearch(make_net(), lambda names: "second" in names)
    assert search.find("second.mlp.0") == ("second",)


def test_nothing_is_found_where_nothing_helps():
    assert CureSearch(make_net(), lambda names: False).find("head") is None


def test_the_best_so_far_is_returned_when_the_trials_are_used_up():
    search = CureSearch(make_net(), lambda names: {"stem", "head"} <= covered(names), max_trials=1)
    assert search.find("") == ("stem", "first", "second", "head")
    assert search.trials == 1


def test_the_time_ends_a_search_too():
    times = itertools.chain([0.0, 1.0], itertools.repeat(100.0))
    search = CureSearch(make_net(), lambda names: "head" in names, max_seconds=10.0, clock=lambda: next(times))
    assert search.find("") == ("stem", "first", "second", "head")
