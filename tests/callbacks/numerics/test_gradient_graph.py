from __future__ import annotations

import torch
from torch import nn

from lightning_perf.callbacks.numerics.underflow import read_graph


def test_counts_the_casts_of_each_parameter():
    first, norm, unused = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)
    for cache_enabled, casts in ((True, 1), (False, 3)):
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache_enabled):
            x = torch.ones(2, 4)
            for _ in range(3):
                x = first(x)
            graph = read_graph(norm(x).sum())
        assert graph.casts == {
            id(first.weight): casts, id(first.bias): casts, id(norm.weight): 0, id(norm.bias): 0,
        }  # fmt: skip
        assert id(unused.weight) not in graph.casts
        assert graph.total_casts == 2 * casts
        assert not graph.compiled


def test_compiled_code_hides_its_casts():
    layer = nn.Linear(4, 4)
    compiled = torch.compile(layer, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        graph = read_graph(compiled(torch.ones(2, 4)).sum())
    assert graph.compiled
    assert set(graph.casts) == {id(layer.weight), id(layer.bias)}
    torch.compiler.reset()


def test_loss_without_a_graph_reaches_nothing():
    assert read_graph(torch.ones(())).casts == {}
