"""Slightly moved copies of pictures, a batch at a time on whatever device holds it."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["MAX_DEGREES", "MAX_SHIFT", "augment"]

MAX_DEGREES = 10.0
"""The original's own copies are rotated by up to as much."""
MAX_SHIFT = 0.05
"""Of the picture's width and height."""


def augment(pictures: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Rotate and shift every picture of a batch by an amount of its own, the edge's grey values continued.

    One call of the device's sampler for the whole batch: transforms of ``torchvision.transforms.v2`` draw one amount a
    call, so they would take a call a picture.

    Args:
        pictures: ``(n, 1, size, size)`` of uint8.
        generator: What draws the amounts, on the CPU; torch's own when not given.

    Returns:
        ``(n, 1, size, size)`` of uint8 on the same device.
    """
    degrees, shift_x, shift_y = torch.empty(3, len(pictures)).uniform_(-1, 1, generator=generator)
    angle = degrees * math.radians(MAX_DEGREES)
    cosine, sine = angle.cos(), angle.sin()
    # Coordinates run from −1 to 1, so a share of the width is twice as much of them.
    rows = [cosine, -sine, shift_x * 2 * MAX_SHIFT, sine, cosine, shift_y * 2 * MAX_SHIFT]
    affine = torch.stack(rows, dim=1).view(-1, 2, 3).to(pictures.device, non_blocking=True)
    moved = functional.grid_sample(
        pictures.float(), _grid(affine, *pictures.shape[2:]), padding_mode="border", align_corners=False
    )
    return moved.round_().to(torch.uint8)  # between its neighbours, so within 0 and 255


def _grid(affine: Tensor, height: int, width: int) -> Tensor:
    """Where each pixel comes from, as `torch.nn.functional.affine_grid` answers, ``(n, height, width, 2)``.

    That multiplies a matrix for each pixel, which took two thirds of a whole augmentation on a CPU. A column's part and
    a line's part are enough, and the sampler reads the sums as they lie, the coordinates apart.
    """
    of_x, of_y, constant = (part[..., None, None] for part in affine.unbind(dim=2))
    columns = of_x * _centres(width, affine) + constant
    return (columns + of_y * _centres(height, affine)[:, None]).permute(0, 2, 3, 1)


def _centres(count: int, like: Tensor) -> Tensor:
    """Centres of pixels side by side, the edges of the picture at −1 and 1."""
    return (torch.arange(count, dtype=like.dtype, device=like.device) * 2 + 1) / count - 1
