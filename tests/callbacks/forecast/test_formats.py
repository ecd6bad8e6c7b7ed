"""The emulated formats against brute force: torch's own FP8 casts, and an enumeration of all values."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch

from lightning_perf.callbacks.forecast.formats import FORMATS, round_values
from lightning_perf.callbacks.forecast.matrices import ProductSample
from lightning_perf.callbacks.forecast.rounding import RECIPES, RoundedLayer


def enumerate_values(exponent_bits: int, mantissa_bits: int, bias: int, codes: int) -> list[tuple[float, int]]:
    """The non-negative values of a small format with their codes, from the definition of its bits."""
    values = []
    for code in range(codes):
        exponent, mantissa = code >> mantissa_bits, code & (2**mantissa_bits - 1)
        fraction = mantissa / 2**mantissa_bits
        value = fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias)
        values.append((value, code))
    assert len({value for value, _ in values}) == codes
    assert codes <= 2 ** (exponent_bits + mantissa_bits)
    return values


E4M3 = enumerate_values(4, 3, 7, 127)  # code 127 is NaN
E5M2 = enumerate_values(5, 2, 15, 124)  # codes 124 to 127 are inf and NaN
E2M1 = enumerate_values(2, 1, 1, 8)


def nearest(value: float, table: list[tuple[float, int]]) -> float:
    """The nearest value of a table by exact arithmetic. A tie takes the even code."""
    exact = abs(Fraction(value))
    best = min(table, key=lambda entry: (abs(Fraction(entry[0]) - exact), entry[1] % 2))
    return math.copysign(best[0], value)


def beyond(scaled: torch.Tensor, table: list[tuple[float, int]]) -> torch.Tensor:
    """Whether values would round to the next value after the largest one, if the format had it."""
    (below, _), (largest, code) = table[-2:]
    midpoint = largest + (largest - below) / 2
    return scaled.abs() >= midpoint if code % 2 else scaled.abs() > midpoint  # a tie goes to the even code


def hard_values(table: list[tuple[float, int]]) -> torch.Tensor:
    """All values, all midpoints, and the FP32 neighbors of both, up to 1.2 times the largest."""
    points = [value for value, _ in table]
    points += [(a + b) / 2 for a, b in itertools.pairwise(points)]
    points += [points[len(table) - 1] * factor for factor in (1.01, 1.03, 1.05, 1.2)]
    found = torch.tensor(points, dtype=torch.float32)
    infinity = torch.tensor(torch.inf)
    found = torch.cat([found, torch.nextafter(found, infinity), torch.nextafter(found, -infinity)])
    return torch.cat([found, -found])


@pytest.mark.parametrize(
    ("name", "table", "dtype"),
    [("e4m3", E4M3, torch.float8_e4m3fn), ("e5m2", E5M2, torch.float8_e5m2)],
)
def test_fp8_is_torchs_cast(name: str, table: list[tuple[float, int]], dtype: torch.dtype) -> None:
    largest = torch.tensor(table[-1][0])  # a scale of 1
    random = torch.randn(20_000) * torch.exp2(torch.randint(-25, 18, (20_000,)).float())
    values = torch.cat([hard_values(table), random])[None]
    rounded = round_values(values, name, largest=largest, earlier_largest=largest)
    cast = values.clamp(-largest, largest).to(dtype).float()
    assert torch.equal(rounded.values, cast)
    by_table = [nearest(value, table) for value in hard_values(table).tolist()]
    assert rounded.values[0, : len(by_table)].tolist() == by_table


@pytest.mark.parametrize(
    ("name", "table", "dtype"),
    [("e4m3", E4M3, torch.float8_e4m3fn), ("e5m2", E5M2, torch.float8_e5m2)],
)
def test_scales_are_those_of_the_largest_magnitude(
    name: str, table: list[tuple[float, int]], dtype: torch.dtype
) -> None:
    limit = table[-1][0]
    values = torch.randn(50, 40) * 3e-4
    largest, earlier = values.abs().max(), values.abs().max() / 4
    for each, reference in ((name, largest), (f"{name}-delayed", earlier)):
        scale = limit / reference
        scaled = values * scale
        expected = scaled.clamp(-limit, limit).to(dtype).float() / scale
        rounded = round_values(values, each, largest=largest, earlier_largest=earlier)
        assert torch.equal(rounded.values, expected)
        assert torch.equal(rounded.saturated, beyond(scaled, table))
    assert rounded.saturated.any()


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_16_bits_are_torchs_casts(name: str, dtype: torch.dtype) -> None:
    values = torch.tensor([[65504.0, 65519.996, 65520.0, 1e5, 3.39e38, 3.4e38, 2.0**-24, 2.0**-25, 1e-41, -7e4]])
    rounded = round_values(values, name, largest=values.max(), earlier_largest=values.max())
    assert torch.equal(rounded.values, values.to(dtype).float())
    assert torch.equal(rounded.saturated, values.to(dtype).isinf())


@pytest.mark.parametrize("columns", [32, 64, 40, 7])
def test_mxfp8_by_brute_force(columns: int) -> None:
    values = torch.randn(6, columns) * torch.exp2(torch.randint(-20, 20, (6, columns)).float())
    values[0, :5] = torch.tensor([448.0, 449.0, 0.0, 1e-30, -448.0])
    rounded = round_values(values, "mxfp8", largest=values.abs().max(), earlier_largest=values.abs().max())
    for row, got in zip(values, rounded.values, strict=True):
        for begin in range(0, columns, 32):
            block = row[begin : begin + 32]
            # The smallest power of two that keeps the largest magnitude within 448.
            exponent = next(e for e in range(-126, 128) if float(block.abs().max()) <= 448 * 2.0**e)
            expected = (block / 2.0**exponent).to(torch.float8_e4m3fn).float() * 2.0**exponent
            assert torch.equal(got[begin : begin + 32], expected)
            assert [nearest(float(value) / 2.0**exponent, E4M3) * 2.0**exponent for value in block] == expected.tolist()
    assert not rounded.saturated.any()


@pytest.mark.parametrize("columns", [16, 48, 21])
def test_nvfp4_by_enumeration(columns: int) -> None:
    values = torch.randn(5, columns) * torch.exp2(torch.randint(-4, 4, (5, columns)).float())
    values[0] = 0
    values[1] *= 1e-9  # the block scale underflows
    largest = values.abs().max()
    rounded = round_values(values, "nvfp4", largest=largest, earlier_largest=largest)
    whole = largest / torch.tensor(6.0 * 448.0)
    for row, got in zip(values, rounded.values, strict=True):
        for begin in range(0, columns, 16):
            block = row[begin : begin + 16]
            wanted = float(block.abs().max() / 6.0 / whole)
            scale = torch.tensor(nearest(wanted, E4M3)) * whole
            if float(scale) == 0:
                assert not got[begin : begin + 16].any()
                continue
            expected = [float(torch.tensor(nearest(float(value), E2M1)) * scale) for value in block / scale]
            assert got[begin : begin + 16].tolist() == expected


def test_zeros_have_no_scale() -> None:
    zeros = torch.zeros(2, 40)
    for name in FORMATS:
        rounded = round_values(zeros, name, largest=torch.tensor(0.0), earlier_largest=torch.tensor(0.0))
        assert torch.equal(rounded.values, zeros)
        assert not rounded.saturated.any()


def test_counts_and_ratios_against_a_second_implementation() -> None:
    torch.manual_seed(1)
    activation, weight, gradient = torch.randn(40, 64), torch.randn(32, 64) * 0.02, torch.randn(40, 32) * 1e-6
    activation[3, 5] = 3e6  # an outlier flushes the small values of its tensor
    gradient[0, 0] = 0
    largest = {
        "activation": activation.abs().max(), "weight": weight.abs().max(), "gradient": gradient.abs().max(),
    }  # fmt: skip
    earlier = {name: value / 8 for name, value in largest.items()}
    samples = [
        ProductSample("forward", "activation", activation, "weight", weight),
        ProductSample("input gradient", "gradient", gradient, "weight", weight.T),
        ProductSample("weight gradient", "gradient", gradient.T, "activation", activation.T),
    ]
    gradient_scale, tensors, products = RoundedLayer(samples, largest, earlier, torch.tensor(1024.0)).read()
    assert gradient_scale == 1024
    assert list(tensors) == ["weight", "activation", "gradient"]
    by_hand = {"e4m3": (E4M3, torch.float8_e4m3fn), "e5m2": (E5M2, torch.float8_e5m2)}
    rounded: dict[str, dict[str, torch.Tensor]] = {}
    for tensor, values in (("activation", activation), ("weight", weight), ("gradient", gradient)):
        found = tensors[tensor]
        assert (found.values, found.zeros) == (values.numel(), int((values == 0).sum()))
        assert found.largest == float(values.abs().max())
        for name, (table, dtype) in by_hand.items():
            limit = table[-1][0]
            for each, reference in ((name, largest[tensor]), (f"{name}-delayed", earlier[tensor])):
                s = limit / reference
                cast = (values * s).clamp(-limit, limit).to(dtype).float() / s
                rounded.setdefault(tensor, {})[each] = cast
                saturated = beyond(values * s, table)
                flushed = (cast == 0) & (values != 0)
                coarse = ((cast - values).abs() > values.abs() / 8) & ~flushed & ~saturated
                counts = found.formats[each]
                assert (counts.flushed, counts.saturated, counts.coarse) == (
                    int(flushed.sum()), int(saturated.sum()), int(coarse.sum()),
                )  # fmt: skip
    half = (gradient * 1024).half()
    assert tensors["gradient"].formats["fp16"].flushed == int(((half == 0) & (gradient != 0)).sum())
    assert tensors["activation"].formats["e4m3"].flushed > 2000  # all but the outlier
    for recipe in ("fp8", "fp8-delayed", "e5m2"):
        operand, incoming = RECIPES[recipe]
        x, w, g = rounded["activation"][operand], rounded["weight"][operand], rounded["gradient"][incoming]
        for product, exact, approximate in (
            ("forward", activation.double() @ weight.double().T, x.double() @ w.double().T),
            ("input gradient", gradient.double() @ weight.double(), g.double() @ w.double()),
            ("weight gradient", gradient.double().T @ activation.double(), g.double().T @ x.double()),
        ):
            expected = 10 * math.log10(float(exact.square().sum() / (approximate - exact).square().sum()))
            assert products[product][recipe] == pytest.approx(expected, abs=0.01)


def test_a_product_that_overflows_has_the_lowest_ratio() -> None:
    largest = {"activation": torch.tensor(1e5), "weight": torch.tensor(1.0)}

    def ratios(activation: float) -> dict[str, float | None]:
        full = torch.full((32, 32), activation)
        samples = [ProductSample("forward", "activation", full, "weight", torch.ones(32, 32))]
        magnitudes = {**largest, "activation": torch.tensor(activation)}
        _, _, products = RoundedLayer(samples, magnitudes, largest, torch.tensor(1.0)).read()
        return products["forward"]

    assert ratios(1e5)["fp16"] == -200
    assert (ratios(1e5)["mxfp8"] or 0) > 20
    assert ratios(0.0)["fp8"] is None
