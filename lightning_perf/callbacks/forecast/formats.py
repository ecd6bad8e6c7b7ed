"""Emulates number formats exactly: FP16, BF16, FP8 with two ways of scaling, MXFP8 and NVFP4."""

from __future__ import annotations

import torch
from msgspec import Struct

FORMATS = ("fp16", "bf16", "e4m3", "e4m3-delayed", "e5m2", "e5m2-delayed", "mxfp8", "nvfp4")
"""The formats of a tensor.

- ``e4m3``, ``e5m2``: FP8 with one scale per tensor, from the largest magnitude of this tensor (current scaling).
- ``e4m3-delayed``, ``e5m2-delayed``: FP8 with one scale per tensor, from the largest magnitude of earlier batches.
- ``mxfp8``: E4M3 in blocks of 32 values along the sums of the product. Each block has a power of two as its scale,
  rounded up so that no value saturates (Transformer Engine's ``MXFP8BlockScaling``).
- ``nvfp4``: E2M1 in blocks of 16 values with an E4M3 scale each, and one FP32 scale per tensor. Rounds to nearest, and
  has neither stochastic rounding nor a Hadamard transform.
"""

_EXPONENT_BITS = 0x7F800000
_FP32_MANTISSA = 23
_FP32_BIAS = 127


class _Float(Struct, frozen=True):
    """A small floating-point format without infinities in use.

    Attributes:
        mantissa_bits: Bits of the mantissa after the point.
        min_exponent: Exponent of the smallest normal value.
        overflow: The first FP32 value that rounds to more than `largest`.
    """

    mantissa_bits: int
    min_exponent: int
    largest: float
    overflow: float


# A tie rounds to the even mantissa: 464 rounds down to 448, but 61440 and 7 round up, beyond the largest value.
_E4M3 = _Float(3, -6, 448.0, 464.0 + 2.0**-15)
_E5M2 = _Float(2, -14, 57344.0, 61440.0)
_E2M1 = _Float(1, 0, 6.0, 7.0)


class Rounded(Struct, frozen=True):
    """A tensor after rounding.

    Attributes:
        values: The values that the format represents, with all scales undone, as FP32.
        saturated: Whether each value was beyond the largest value of the format.
    """

    values: torch.Tensor
    saturated: torch.Tensor


@torch.no_grad()
def round_values(
    values: torch.Tensor, number_format: str, *, largest: torch.Tensor, earlier_largest: torch.Tensor
) -> Rounded:
    """Round values to a format and back.

    Args:
        values: An FP32 matrix. Blocks run along its last dimension. The last block of a row may be shorter.
    """
    if number_format == "fp16":
        return Rounded(values.half().float(), values.abs() >= 65520.0)
    if number_format == "bf16":
        rounded = values.bfloat16().float()
        return Rounded(rounded, rounded.isinf())
    if number_format in _BLOCKS:
        size, round_blocks = _BLOCKS[number_format]
        missing = -values.shape[-1] % size
        padded = torch.nn.functional.pad(values, (0, missing)) if missing else values
        blocks = round_blocks(padded.reshape(*values.shape[:-1], -1, size), largest)
        return Rounded(*(part.flatten(-2)[..., : values.shape[-1]] for part in (blocks.values, blocks.saturated)))
    name, _, delayed = number_format.partition("-")
    element = _E4M3 if name == "e4m3" else _E5M2
    return _per_tensor(values, element, earlier_largest if delayed else largest)


def _per_tensor(values: torch.Tensor, element: _Float, largest: torch.Tensor) -> Rounded:
    # Without a known magnitude, Transformer Engine and torchao keep a scale of 1.
    scale = torch.where(largest > 0, element.largest / largest, torch.ones_like(largest))
    scale = torch.where(scale.isinf(), torch.full_like(scale, torch.finfo(torch.float32).max), scale)
    rounded = _round(values * scale, element)
    return Rounded(rounded.values / scale, rounded.saturated)


def _mxfp8(blocks: torch.Tensor, _: torch.Tensor) -> Rounded:
    scale = _power_of_two_above(blocks.abs().amax(-1, keepdim=True) / _E4M3.largest)
    rounded = _round(blocks / scale, _E4M3)
    return Rounded(rounded.values * scale, rounded.saturated)


def _nvfp4(blocks: torch.Tensor, largest: torch.Tensor) -> Rounded:
    # The tensor's scale makes the largest block scale the largest E4M3 value.
    whole = torch.where(largest > 0, largest / (_E2M1.largest * _E4M3.largest), torch.ones_like(largest))
    wanted = blocks.abs().amax(-1, keepdim=True) / _E2M1.largest / whole
    scale = _round(wanted, _E4M3).values * whole
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
    rounded = _round(blocks / divisor, _E2M1)
    # A block with a scale that underflows is zero.
    values = torch.where(scale > 0, rounded.values * scale, torch.zeros_like(blocks))
    return Rounded(values, rounded.saturated & (scale > 0))


_BLOCKS = {"mxfp8": (32, _mxfp8), "nvfp4": (16, _nvfp4)}
"""Sizes of the blocks of a format, and the function that rounds them."""


def _round(values: torch.Tensor, element: _Float) -> Rounded:
    """Round to the nearest value of a format, ties to even, and clamp."""
    lowest = (element.min_exponent + _FP32_BIAS) << _FP32_MANTISSA
    exponent = values.view(torch.int32).bitwise_and(_EXPONENT_BITS).clamp_(min=lowest).view(torch.float32)
    # Adding and subtracting this number leaves a value with the wanted number of mantissa bits: the processor rounds.
    shift = exponent.mul_(1.5 * 2.0 ** (_FP32_MANTISSA - element.mantissa_bits))
    rounded = (values + shift).sub_(shift).clamp_(-element.largest, element.largest)
    return Rounded(rounded, values.abs() >= element.overflow)


def _power_of_two_above(values: torch.Tensor) -> torch.Tensor:
    """The smallest power of two that is at least as large; 2⁻¹²⁶ for smaller values, which FP32 can divide by."""
    mantissa, exponent = torch.frexp(values.clamp(min=2.0**-126))
    exact = mantissa == 0.5
    return torch.ldexp(torch.ones_like(values), exponent - exact.to(exponent.dtype))
