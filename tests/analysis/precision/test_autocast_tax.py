import pytest

from lightning_perf.analysis.precision.amp_gain import autocast_tax
from tests.support.trace_builder import TraceBuilder

TO_BF16, TO_FLOAT = ["c10::BFloat16", "float", "Scalar"], ["float", "c10::BFloat16", "Scalar"]
AUTOGRAD = 2000


class Casts(TraceBuilder):
    """A step of casts, each a copy of 5 µs on the host with a kernel of 3 µs."""

    def __init__(self):
        super().__init__()
        self.step(1, 0, 10_000)
        self.at = 0

    def cast(self, types, shape, *, thread=1000, kernel=True):
        self.at += 20
        self.op("aten::to", self.at, 10, types=[types[1], "Scalar"], dims=[shape, []], thread=thread)
        self.op("aten::_to_copy", self.at + 1, 8, types=[types[1], "Scalar"], dims=[shape, []], thread=thread)
        self.op("aten::copy_", self.at + 2, 5, types=types, dims=[shape, shape, []], thread=thread)
        if kernel:
            self.launch(
                "cast", call_us=self.at + 3, call_duration_us=1, start_us=self.at + 5, duration_us=3, thread=thread
            )
        return self

    def accumulate(self, shape):
        self.at += 20
        node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
        self.op(node, self.at, 8, thread=AUTOGRAD)
        return self.op(
            "torch::autograd::AccumulateGrad", self.at + 1, 5, types=["float"], dims=[shape], thread=AUTOGRAD
        )


def test_casts_by_type_with_the_time_of_the_device():
    builder = Casts().cast(TO_BF16, [64, 64]).cast(TO_BF16, [8, 64]).cast(TO_FLOAT, [8, 10])
    value = autocast_tax(builder.kernel("gemm", 5000, 91).build())
    assert [(c.source, c.target, c.count, c.time_ns) for c in value.casts] == [
        ("fp32", "bf16", 2, 6000),
        ("bf16", "fp32", 1, 3000),
    ]
    assert (value.count, value.time_ns, value.on_device) == (3, 9000, True)
    assert value.share == pytest.approx(9 / 100)


def test_without_a_device_casts_cost_host_time():
    value = autocast_tax(Casts().cast(TO_BF16, [64, 64], kernel=False).build())
    assert (value.time_ns, value.on_device) == (5000, False)
    assert value.share == pytest.approx(5 / 10_000)


@pytest.mark.parametrize(
    "types", [["float", "float"], ["float", "long int"], ["c10::BFloat16", "Scalar"], ["float"], ["", ""], []]
)
def test_copies_that_are_no_casts_of_floats(types):
    builder = Casts().cast([*types, "", ""], [4]) if len(types) < 2 else Casts().cast(types, [4])
    assert autocast_tax(builder.build()).count == 0


def test_a_weight_cast_at_every_use_is_repeated():
    """One layer used three times with autocast's cache off: two of the three casts need not be."""
    builder = Casts()
    for _ in range(3):
        builder.cast(TO_BF16, [64, 32])
    builder.cast(TO_BF16, [8, 32])  # an activation: no gradient of this shape is accumulated
    value = autocast_tax(builder.accumulate([64, 32]).build())
    assert (value.repeated_weight_casts, value.repeated_weight_ns) == (2, 6000)


def test_weights_cast_once_each_are_not_repeated():
    builder = Casts().cast(TO_BF16, [64, 64]).cast(TO_BF16, [64, 64])
    value = autocast_tax(builder.accumulate([64, 64]).accumulate([64, 64]).build())
    assert value.repeated_weight_casts == 0


def test_there_and_back():
    """16 bit to FP32 and back around an FP32-only operator is one round trip; FP32 in and out of a network is none."""
    value = autocast_tax(Casts().cast(TO_FLOAT, [8, 64]).cast(TO_BF16, [8, 64]).build())
    assert (value.round_trips, value.round_trip_ns) == (1, 6000)
    assert autocast_tax(Casts().cast(TO_BF16, [8, 64]).cast(TO_FLOAT, [8, 64]).build()).round_trips == 0
    assert autocast_tax(Casts().cast(TO_FLOAT, [8, 64]).cast(TO_BF16, [8, 32]).build()).round_trips == 0
    threads = Casts().cast(TO_FLOAT, [8, 64]).cast(TO_BF16, [8, 64], thread=AUTOGRAD)
    assert autocast_tax(threads.build()).round_trips == 0


def test_without_types_it_says_so():
    value = autocast_tax(TraceBuilder().step(1, 0, 100).op("aten::copy_", 0, 5).build())
    assert value.count == 0
    assert "record_shapes=True" in value.missing
