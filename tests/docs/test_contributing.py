"""The four extensions that CONTRIBUTING.md shows do what it says of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_perf.analysis.rank import analyze_rank
from lightning_perf.findings.finding import rule
from lightning_perf.inference.model import Subject
from lightning_perf.tune.levers.lever import Machine
from lightning_perf.tune.training import Training
from tests.support.markdown import ROOT, blocks
from tests.support.trace_builder import TraceBuilder

MOST_LINES = 40
EXAMPLES = [block for block in blocks(ROOT / "CONTRIBUTING.md") if block.language == "python"]


@pytest.fixture(scope="module")
def names() -> Iterator[dict[str, Any]]:
    """Everything that the examples define."""
    defined: dict[str, Any] = {"__name__": __name__}  # dataclasses and pickles look their module up
    for block in EXAMPLES:
        exec(compile(block.text, str(block.page), "exec"), defined)
    yield defined
    del rule.by_id["memsets"]


def test_each_example_is_short() -> None:
    assert len(EXAMPLES) == 4
    assert all(len(block.text.splitlines()) < MOST_LINES for block in EXAMPLES)


@pytest.mark.parametrize(("memset_us", "fires"), [(20, False), (40, True)])
def test_the_finding(names: dict[str, Any], memset_us: float, fires: bool) -> None:
    builder = TraceBuilder().step(1, 0, 1000)
    builder.memset(100, memset_us, 7)
    finding = names["memsets"](analyze_rank(builder.build()))
    assert (finding is not None) == fires
    if finding is not None:
        assert finding.saving_high_ms == pytest.approx(memset_us / 1000)


def test_the_analysis(names: dict[str, Any]) -> None:
    builder = TraceBuilder().step(1, 0, 100).kernel("a", 10, 5, 7).kernel("b", 20, 5, 9, stream=9)
    found = names["stream_use"](builder.build())
    assert (found.steps, found.streams) == (1, 2)
    assert names["stream_use"](TraceBuilder().op("aten::mm", 0, 5).build()) is None


def test_the_lever(names: dict[str, Any]) -> None:
    lever, cpu = names["Nondeterministic"](), Machine("cpu", None, 2, "a CPU")
    training = Training(torch.nn.Linear(2, 2), None, {"deterministic": True})
    assert lever.missing(training, cpu) is None
    lever.apply(training)
    assert lever.missing(training, cpu) == "the Trainer is not deterministic"


def test_the_runtime(names: dict[str, Any], tmp_path: Path) -> None:
    runtime, module, inputs = names["Float64"](), torch.nn.Linear(3, 2), torch.rand(4, 3)
    device = torch.device("cpu")
    assert runtime.missing(device) is None
    runtime.build(Subject(module, inputs, inputs, device, threads=1), tmp_path)
    outputs = runtime.load(tmp_path, device, 1)(inputs)
    assert torch.allclose(outputs, module(inputs), atol=1e-6)
