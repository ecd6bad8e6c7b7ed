"""When TorchInductor compiles, and with which switches; what it compiles is in `test_registry`."""

import pytest
import torch
from torch import nn

from lightning_perf.inference.runtimes.compiled import compiled_call


@pytest.fixture
def compiled(monkeypatch):
    """Each compilation's freezing switch, instead of a compiler."""
    seen = []

    def backend(graph, _):
        seen.append(torch._inductor.config.freezing)
        return graph.forward

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **_: compile_(module, dynamic=False, backend=backend))
    torch._dynamo.reset()
    yield seen
    torch._dynamo.reset()


def test_weights_are_frozen_whatever_tensors_come(compiled):
    call = compiled_call(nn.Conv2d(1, 2, 3).eval(), threads=1)
    normal = torch.randn(2, 1, 5, 5)
    with torch.inference_mode():
        of_inference = torch.randn(2, 1, 5, 5)
    odd = normal.as_strided((2, 1, 5, 5), (25, 7, 5, 1))
    channels_last = normal.to(memory_format=torch.channels_last)
    wanted = call(normal)
    for inputs in (of_inference, odd, channels_last, normal[:1], of_inference[:1], normal):
        call(inputs)
    torch.testing.assert_close(call(odd), wanted)
    assert compiled == [True] * 4  # two batch sizes, within inference mode and without
    assert not torch._inductor.config.freezing
