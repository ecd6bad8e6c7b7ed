from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.errors import TraceError
from lightning_perf.run_files.steps import STEPS, StepSample

counts = st.integers(0, 2**62)
sample_values = st.builds(
    StepSample, counts, counts, counts, st.none() | counts, st.none() | st.integers(0, 10**6), st.booleans()
)


def sample(step: int, ms: int) -> StepSample:
    return StepSample(step, ms * 1_000_000, 0, None, 4, False)


@given(st.lists(sample_values, max_size=8), st.integers(0, 200))
def test_killed_run_loses_only_the_line_it_was_writing(tmp_path_factory, samples, cut):
    path = tmp_path_factory.getbasetemp() / "steps.rank0.jsonl"
    lines = [STEPS.encode(value) for value in samples]
    whole = b"".join(lines)
    kept = whole[: max(len(whole) - cut, 0)]
    path.write_bytes(kept)
    read = STEPS.read(path)
    finished = kept.count(b"\n")
    # A cut that takes the newline alone leaves a whole object, which counts.
    assert read[:finished] == tuple(samples[:finished])
    assert len(read) - finished in (0, 1)
    assert read == tuple(samples[: len(read)])


def test_run_resumed_after_a_torn_line_keeps_its_first_sample(tmp_path):
    first, torn, resumed = sample(1, 10), sample(2, 10), sample(2, 11)
    path = tmp_path / "steps.rank0.jsonl"
    path.write_bytes(STEPS.encode(first) + STEPS.encode(torn)[:31] + STEPS.encode(resumed) + STEPS.encode(first))
    assert STEPS.read(path) == (first, resumed, first)


def test_line_that_is_no_sample_names_its_number(tmp_path):
    path = tmp_path / "steps.rank0.jsonl"
    path.write_bytes(STEPS.encode(sample(1, 10)) + b'{"step": -1}\n' + STEPS.encode(sample(2, 10)))
    with pytest.raises(TraceError, match=r"line 2 is no step sample"):
        STEPS.read(path)


def test_missing_file_is_a_trace_error(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        STEPS.read(tmp_path / "none.jsonl")


def test_unknown_fields_of_a_later_version_are_ignored(tmp_path):
    path = tmp_path / "steps.rank0.jsonl"
    path.write_bytes(STEPS.encode(sample(1, 10)).replace(b"{", b'{"later":1,'))
    assert STEPS.read(path) == (sample(1, 10),)
