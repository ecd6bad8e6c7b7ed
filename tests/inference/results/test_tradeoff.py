import pytest

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.results.tradeoff import Tradeoff
from tests.inference.support import row, tradeoff


def test_json_gives_the_same_document():
    document = tradeoff([row("eager"), row("broken", reason="no compiler", accuracy=None, latencies=())])
    assert Tradeoff.from_json(document.to_json()) == document
    assert document.row("broken").reason == "no compiler"
    assert document.row("eager").latency(1, 1).calls == 200
    assert document.row("eager").latency(2, 1) is None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a trade-off document"),
        (b"[1]", "not a trade-off document"),
        (b'{"schema_version": 9}', "upgrade lightning-perf"),
        (b'{"schema_version": 0}', "measure again"),
        (b'{"schema_version": 1}', "damaged"),
        (tradeoff([row("eager", size="big")]).to_json(), "damaged"),
    ],
)
def test_bad_documents_are_told(data, said):
    with pytest.raises(InferenceError, match=said):
        Tradeoff.from_json(data)
