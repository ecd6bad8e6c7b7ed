import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf import units

FACTORS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}
BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}


@given(st.floats(0.01, 59e9))
def test_a_duration_reads_back_within_half_a_last_digit(time_ns):
    number, unit = units.format_duration(time_ns).split()
    assert float(number) * FACTORS[unit] == pytest.approx(time_ns, rel=0.0051)


@given(st.integers(0, 2**59))
def test_bytes_read_back(size):
    number, unit = units.format_bytes(size).split()
    assert float(number) * BYTES[unit] == pytest.approx(size, rel=0.0051)
    assert float(number) < 1024


@given(st.floats(0, 1))
def test_a_share_never_claims_none_or_all_when_it_is_neither(share):
    text = units.format_share(share)
    assert (text == "0 %") == (share == 0)
    assert (text == "100 %") == (share == 1)
    assert re.fullmatch(r"[<>]?\d+(\.\d)? %", text)


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (999, "999 ns"),
        (999.7, "1.00 µs"),
        (999_999, "1.00 ms"),
        (-1500, "−1.50 µs"),
        (59.9994e9, "1 min 0 s"),
        (3599.6e9, "1 h 0 min"),
        (0.25, "0.250 ns"),
    ],
)
def test_durations_at_the_edges_of_units(time_ns, text):
    assert units.format_duration(time_ns) == text


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "function",
    [
        units.format_duration,
        units.format_bytes,
        units.format_bandwidth,
        units.format_flops,
        units.format_flop_rate,
        units.format_count,
        units.format_share,
        units.format_ratio,
        lambda value: units.format_rate(value, "samples"),
    ],
)
def test_what_is_no_number_is_said_to_be_missing(function, missing):
    assert function(missing) == units.NOT_AVAILABLE


def test_counts_and_rates():
    assert units.format_count(0) == "0"
    assert units.format_count(1234.5) == "1,234"
    assert units.format_flops(0) == "0 FLOPs"
    assert units.format_flop_rate(2.25e15) == "2.25 PFLOP/s"
    assert units.format_bandwidth(732e9) == "732 GB/s"
    assert units.format_rate(999.6, "samples") == "1,000 samples/s"
    assert (units.format_rate(999.4, "samples"), units.format_count(999.6)) == ("999 samples/s", "1,000")


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.94, "−6.0 %"),
        (1.06383, "+6.4 %"),
        (2.0, "+100 %"),
        (9.99, "+899 %"),
        (0.101, "−89.9 %"),
        (10.0, "×10.0"),
        (0.1, "×0.10"),
        (99.96, "×100"),
        (2183.1, "×2183"),
        (0.00126, "×0.0013"),
        (1e6, "×1000000"),
        (1.1e6, "over ×10⁶"),
        (1e-7, "under ×10⁻⁶"),
        (None, "–"),
    ],
)
def test_ratios_as_signed_changes_and_from_tenfold_on_as_factors(ratio, text):
    assert units.format_change(ratio) == text


@pytest.mark.parametrize(
    "factor", [1.234e-6, 0.0042, 0.0999, 0.1001, 0.5, 1.0, 9.9996, 10.0, 99.94, 99.96, 12345.6, 1e6]
)
def test_a_factor_reads_back_as_itself(factor):
    assert float(units.format_factor(factor)) == pytest.approx(factor, rel=0.05)
