import pytest

from lightning_perf.analysis.host.launches import ClockSkew, clock_skew
from tests.conftest import corpus_rows
from tests.support.trace_builder import TraceBuilder


def test_work_before_its_launch_is_counted():
    builder = TraceBuilder().step(1, 0, 100).kernel("unlinked", 0, 1)
    builder.launch("sound", call_us=10, call_duration_us=5, start_us=12, duration_us=3)
    builder.launch("at once", call_us=20, call_duration_us=5, start_us=20, duration_us=3)
    builder.launch("early", call_us=30, call_duration_us=5, start_us=28, duration_us=3)
    builder.launch("earlier", call_us=40, call_duration_us=5, start_us=33, duration_us=3)
    assert clock_skew(builder.build()) == ClockSkew(early=2, linked=4, lead_ns=7_000)


def test_nothing_early_and_no_device():
    sound = TraceBuilder().launch("k", call_us=10, call_duration_us=5, start_us=12, duration_us=3)
    assert clock_skew(sound.build()) is None
    assert clock_skew(TraceBuilder().op("aten::mm", 0, 5).build()) is None


@pytest.mark.corpus
@pytest.mark.parametrize(
    "row", [row for row in corpus_rows() if row["events"] < 5000], ids=lambda row: row["file"].split("/", 1)[1]
)
def test_real_recordings_have_none(trace):
    assert clock_skew(trace) is None
