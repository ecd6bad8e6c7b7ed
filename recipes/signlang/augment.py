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
    count = len(pictures)
    degrees, shift_x, shift_y = torch.empty(3, count).uniform_(-1, 1, generator=generator)
    angle = degrees * math.radians(MAX_DEGREES)
    cosine, sine = angle.cos(), angle.sin()
    # Coordinates run from −1 to 1, so a share of the width is twice as much of them.
    rows = [cosine, -sine, shift_x * 2 * MAX_SHIFT, sine, cosine, shift_y * 2 * MAX_SHIFT]
    affine = torch.stack(rows, dim=1).view(count, 2, 3).to(pictures.device, non_blocking=True)
    grid = functional.affine_grid(affine, list(pictures.shape), align_corners=False)
    moved = functional.grid_sample(pictures.float(), grid, padding_mode="border", align_corners=False)
    return moved.round_().clamp_(0, 255).to(torch.uint8)
