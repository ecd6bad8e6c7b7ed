import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.analysis.steps.step_times import summarize_step_times
from lightning_perf.errors import TraceError
from lightning_perf.run_files.steps import STEPS, StepSample, StepSamples

counts = st.integers(0, 2**62)
sample_values = st.builds(
    StepSample,
    counts,
    counts,
    counts,
    st.none() | counts,
    st.none() | st.integers(0, 10**6),
    st.booleans(),
    st.none() | counts,
    st.none() | counts,
    st.none() | counts,
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
    read = tuple(STEPS.read(path))
    finished = kept.count(b"\n")
    # A cut that takes the newline alone leaves a whole object, which counts.
    assert read[:finished] == tuple(samples[:finished])
    assert len(read) - finished in (0, 1)
    assert read == tuple(samples[: len(read)])


def test_run_resumed_after_a_torn_line_keeps_its_first_sample(tmp_path):
    first, torn, resumed = sample(1, 10), sample(2, 10), sample(2, 11)
    path = tmp_path / "steps.rank0.jsonl"
    path.write_bytes(STEPS.encode(first) + STEPS.encode(torn)[:31] + STEPS.encode(resumed) + STEPS.encode(first))
    assert tuple(STEPS.read(path)) == (first, resumed, first)


def test_line_that_is_no_sample_names_its_number(tmp_path):
    path = tmp_path / "steps.rank0.jsonl"
    path.write_bytes(STEPS.encode(sample(1, 10)) + b'{"step": -1}\n' + STEPS.encode(sample(2, 10)))
    with pytest.raises(TraceError, match=r"line 2 is no step sample"):
        STEPS.read(path)


def test_the_layout_of_a_block(tmp_path: Path) -> None:
    path = tmp_path / "steps.rank0.jsonl"
    values = (
        StepSample(7, 120_000_000, 3_000_000, None, 32, False),
        StepSample(8, 110_000_000, 0, 90_000_000, None, True),
    )
    STEPS.append(path, *values)
    assert path.read_bytes() == (
        b'{"step":7,"step_ns":[120000000,110000000],"data_wait_ns":[3000000,0],"device_ns":[null,90000000],'
        b'"samples":[32,null],"profiled":[1]}\n'
    )
    assert tuple(STEPS.read(path)) == values


@given(st.lists(sample_values, max_size=30))
def test_blocks_keep_every_sample(tmp_path_factory: pytest.TempPathFactory, samples: list[StepSample]) -> None:
    path = tmp_path_factory.getbasetemp() / "steps.rank1.jsonl"
    consecutive = [sample._replace(step=step) for step, sample in enumerate(samples)]
    path.write_bytes(STEPS.encode(*samples) + STEPS.encode(*consecutive))
    assert tuple(STEPS.read(path)) == (*samples, *consecutive)


def test_a_long_run_is_small_on_the_disk_and_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "steps.rank0.jsonl"
    steps = 50_000
    samples = [
        StepSample(step, 98_000_000 + step * 7919 % 4_000_000, 20_000 + step % 977, None, 32, step % 5000 == 0)
        for step in range(steps)
    ]
    for first in range(0, steps, 50):
        STEPS.append(path, *samples[first : first + 50])
    assert path.stat().st_size / steps < 25, "bytes per step"
    expected = summarize_step_times(samples)
    tracemalloc.start()
    times = summarize_step_times(STEPS.read(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert times == expected
    assert peak / steps < 250, "bytes per step"


def test_columns_are_a_sequence_of_samples() -> None:
    samples = [StepSample(step, 10 + step, 1, None if step % 2 else 5, step or None, step == 3) for step in range(6)]
    columns = StepSamples.of(samples)
    assert StepSamples.of(columns) is columns
    assert list(columns) == samples
    assert columns[-1] == samples[-1]
    assert list(columns[2:4]) == samples[2:4]
    assert list(columns[~columns.profiled]) == [sample for sample in samples if not sample.profiled]
    assert not StepSamples.of([])


def test_a_block_with_columns_of_different_lengths_keeps_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "steps.rank0.jsonl"
    line = b'{"step":1,"step_ns":[1,2],"data_wait_ns":[0],"device_ns":null,"samples":[1,2,3],"profiled":[9]}\n'
    path.write_bytes(line)
    assert [sample.step_ns for sample in STEPS.read(path)] == [1, 2]


def test_unknown_fields_of_a_later_version_are_ignored(tmp_path):
    path = tmp_path / "steps.rank0.jsonl"
    path.write_bytes(STEPS.encode(sample(1, 10)).replace(b"{", b'{"later":1,'))
    assert tuple(STEPS.read(path)) == (sample(1, 10),)
