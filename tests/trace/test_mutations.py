"""A quick slice of the fuzzing that ``benchmarks.reading.fuzz`` does at length."""

import gzip
from pathlib import Path

import pytest

from lightning_perf.errors import TraceError
from lightning_perf.trace.reader import read_trace
from tests.support.consistency import assert_consistent
from tests.support.mutations import mutated

SMALL = Path(__file__).parents[1] / "traces" / "two_steps.json"


def read_or_refuse(data: bytes, path: Path) -> bool:
    """Whether a trace was read; it is sound then. Anything but a `TraceError` fails the test."""
    path.write_bytes(data)
    try:
        trace = read_trace(path)
    except TraceError:
        return False
    assert_consistent(trace)
    return True


def test_damage_to_a_hand_made_trace_ends_in_a_trace_or_an_error(tmp_path: Path) -> None:
    text = SMALL.read_bytes()
    read = sum(read_or_refuse(mutated(text, seed), tmp_path / "case.json") for seed in range(250))
    assert 100 < read < 250


@pytest.mark.corpus
@pytest.mark.parametrize(
    "file",
    [
        "traces/tracelens/torch_compile_triton/trace.5c04d97.json.gz",
        "traces/hta/with_gpu_user_annotation/step_based_trace_2543932.b2a719b.json.gz",
    ],
)
def test_damage_to_real_traces_ends_in_a_trace_or_an_error(file: str, corpus: Path, tmp_path: Path) -> None:
    text = gzip.decompress((corpus / file).read_bytes())
    read = sum(read_or_refuse(mutated(text, seed), tmp_path / "case.json") for seed in range(60))
    assert 30 < read <= 60
