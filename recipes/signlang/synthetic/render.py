"""Render the posed hand: a capture is a scene, and its copies are the scene rotated by up to 10 degrees."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from recipes.signlang.synthetic.hand import POSES, Anthropometry, Capsules, Pose, build_hand

FloatArray = NDArray[np.float64]
UInt8Array = NDArray[np.uint8]

MAX_COPY_ROTATION_DEG = 10.0
_MARGIN = 1.25
"""Width of the canvas over the width of the picture: rotated copies have no empty corners (cos 10° + sin 10° is
1.16)."""
_SUPERSAMPLING = 2
_FOCAL_LENGTH = 4.0
"""Distance of the camera, in hand lengths."""
_FAR = -0.6
"""Depth of the wall behind the hand, in hand lengths."""


@dataclass(frozen=True)
class _Camera:
    """View of the hand: angles in degrees, positions in half picture widths."""

    yaw: float
    pitch: float
    roll: float
    scale: float
    shift: tuple[float, float]


def render_capture(label: str, rng: np.random.Generator, size: int, copies: int) -> UInt8Array:
    """Render one capture and its rotated copies.

    Args:
        label: A letter of `recipes.signlang.synthetic.hand.POSES`, or ``"background"`` for the scene without a hand.
        rng: The only source of randomness: the same generator state gives the same pictures.
        size: Width and height in pixels.
        copies: Number of rotated copies.

    Returns:
        ``(copies, size, size)`` grey values.
    """
    side = round(size * _MARGIN) * _SUPERSAMPLING
    scene = _backdrop(rng, side)
    if label in POSES:
        pose = _jitter(POSES[label], rng)
        hand = _project(build_hand(pose, _body(rng)), _aim(pose, rng))
        scene = _paint_hand(scene, hand, rng)
    scene = _expose(scene, rng)
    noise = rng.uniform(0.004, 0.025)
    softness = rng.uniform(0.0, 0.5) * size / 64
    image = Image.fromarray(scene.astype(np.float32))
    start = (side - size * _SUPERSAMPLING) // 2
    box = (start, start, start + size * _SUPERSAMPLING, start + size * _SUPERSAMPLING)
    pictures = np.empty((copies, size, size), np.uint8)
    for i, angle in enumerate(rng.uniform(-MAX_COPY_ROTATION_DEG, MAX_COPY_ROTATION_DEG, copies)):
        turned = image.rotate(float(angle), Image.Resampling.BILINEAR).crop(box)
        small = np.asarray(turned.resize((size, size), Image.Resampling.BOX), np.float64)
        picture = _blur(small, softness) + rng.normal(0.0, noise, (size, size))
        pictures[i] = np.clip(picture * 255 + 0.5, 0, 255).astype(np.uint8)
    return pictures


def _jitter(pose: Pose, rng: np.random.Generator) -> Pose:
    """Vary a pose slightly: nobody holds a letter twice in the same way."""
    flex = np.asarray(pose.flex) + rng.normal(0, 3.0, (4, 3)) + rng.normal(0, 2.0, (4, 1))
    spread = np.asarray(pose.spread) + rng.normal(0, 1.5, 4)
    thumb = np.asarray(pose.thumb) + rng.normal(0, 0.018, 3)
    return Pose(
        flex=tuple((float(a), float(b), float(c)) for a, b, c in np.clip(flex, -8, 120)),
        spread=(float(spread[0]), float(spread[1]), float(spread[2]), float(spread[3])),
        thumb=(float(thumb[0]), float(thumb[1]), float(thumb[2])),
        turn=pose.turn,
        roll=pose.roll,
    )


def _body(rng: np.random.Generator) -> Anthropometry:
    common = rng.uniform(0.9, 1.1)
    own = common * rng.normal(1.0, 0.02, 4)
    return Anthropometry((float(own[0]), float(own[1]), float(own[2]), float(own[3])), float(rng.uniform(0.88, 1.15)))


def _aim(pose: Pose, rng: np.random.Generator) -> _Camera:
    shift = rng.uniform(-0.08, 0.08, 2)
    return _Camera(
        yaw=pose.turn + float(rng.uniform(-10, 10)),
        pitch=float(rng.uniform(-8, 8)),
        roll=pose.roll + float(rng.uniform(-8, 8)),
        scale=float(rng.uniform(1.3, 1.55)),
        shift=(float(shift[0]), float(shift[1])),
    )


def _project(hand: Capsules, camera: _Camera) -> Capsules:
    """Project the hand onto the picture: x right, y up, in half picture widths; z remains the depth."""
    yaw, pitch, roll = (math.radians(a) for a in (camera.yaw, camera.pitch, camera.roll))
    about_y = np.array([[math.cos(yaw), 0, math.sin(yaw)], [0, 1, 0], [-math.sin(yaw), 0, math.cos(yaw)]])
    about_x = np.array([[1, 0, 0], [0, math.cos(pitch), -math.sin(pitch)], [0, math.sin(pitch), math.cos(pitch)]])
    about_z = np.array([[math.cos(roll), -math.sin(roll), 0], [math.sin(roll), math.cos(roll), 0], [0, 0, 1]])
    rotation = about_z @ about_x @ about_y
    centre = np.array([0.0, 0.42, 0.0])

    def place(points: FloatArray) -> tuple[FloatArray, FloatArray]:
        moved = (points - centre) @ rotation.T
        zoom = camera.scale * _FOCAL_LENGTH / (_FOCAL_LENGTH - moved[:, 2])
        moved[:, :2] = moved[:, :2] * zoom[:, None] + np.asarray(camera.shift)
        moved[:, 2] *= camera.scale
        return moved, zoom

    start, zoom_start = place(hand.start)
    end, zoom_end = place(hand.end)
    return Capsules(start, end, hand.radius_start * zoom_start, hand.radius_end * zoom_end)


def _paint_hand(scene: FloatArray, hand: Capsules, rng: np.random.Generator) -> FloatArray:
    """Draw the shaded hand over the scene, with diffuse light, darker creases behind other parts, and a shadow."""
    side = scene.shape[0]
    depth, normal = _rasterise(hand, side)
    covered = depth > _FAR
    angle, height = rng.uniform(0, 2 * math.pi), rng.uniform(0.5, 1.3)
    light = np.array([math.cos(angle), math.sin(angle), height])
    light /= np.linalg.norm(light)
    lit = np.clip(normal @ light, 0, None)
    pixel = 2.0 * _MARGIN / side
    crease = np.clip(
        (_blur(np.where(covered, depth, depth[covered].min()), 0.05 / pixel) - depth - 0.02) * 2.4, 0, 0.55
    )
    skin = _unlike(float(scene[covered].mean()), rng)
    ambient = rng.uniform(0.3, 0.6)
    mottle = 1 + 0.06 * _smooth_noise(rng, side, int(rng.integers(10, 24)))
    shade = skin * (ambient + (1 - ambient) * lit) * (1 - crease) * mottle

    mask = _blur(covered.astype(np.float64), 0.7)
    offset = (light[:2] * rng.uniform(0.04, 0.16) / pixel).astype(int)
    shadow = _blur(np.roll(mask, (int(offset[1]), -int(offset[0])), axis=(0, 1)), rng.uniform(0.03, 0.09) / pixel)
    behind = scene * (1 - rng.uniform(0.0, 0.5) * shadow)
    painted: FloatArray = behind * (1 - mask) + shade * mask
    return painted


def _unlike(backdrop: float, rng: np.random.Generator) -> float:
    """Draw a random skin tone that differs visibly from the wall."""
    skin = float(rng.uniform(0.55, 0.95))
    while abs(skin * 0.75 - backdrop) < 0.15:
        skin = float(rng.uniform(0.55, 0.95))
    return skin


def _rasterise(hand: Capsules, side: int) -> tuple[FloatArray, FloatArray]:
    """Return depth and unit normal of the nearest surface at every pixel; each capsule fills only its bounding box."""
    centres = ((np.arange(side) + 0.5) / side * 2 - 1) * _MARGIN
    depth = np.full((side, side), _FAR)
    normal = np.zeros((side, side, 3))
    normal[..., 2] = 1.0
    for a, b, ra, rb in zip(hand.start, hand.end, hand.radius_start, hand.radius_end, strict=True):
        reach = max(ra, rb)
        left, right = np.searchsorted(centres, [min(a[0], b[0]) - reach, max(a[0], b[0]) + reach])
        low, high = np.searchsorted(centres, [min(a[1], b[1]) - reach, max(a[1], b[1]) + reach])
        if left == right or low == high:
            continue
        # The rows of a picture count from the top.
        rows = slice(side - high, side - low)
        x = centres[left:right][None, :]
        y = centres[low:high][::-1][:, None]
        axis = b - a
        length_sq = axis[0] ** 2 + axis[1] ** 2 + 1e-12
        along = np.clip(((x - a[0]) * axis[0] + (y - a[1]) * axis[1]) / length_sq, 0, 1)
        dx = x - (a[0] + along * axis[0])
        dy = y - (a[1] + along * axis[1])
        radius = ra + along * (rb - ra)
        height_sq = radius**2 - dx**2 - dy**2
        height = np.sqrt(np.clip(height_sq, 0, None))
        z = a[2] + along * axis[2] + height
        nearer = (height_sq > 0) & (z > depth[rows, left:right])
        depth[rows, left:right][nearer] = z[nearer]
        surface = np.stack(np.broadcast_arrays(dx, dy, height), axis=-1) / radius[..., None]
        normal[rows, left:right][nearer] = surface[nearer]
    return depth, normal


def _backdrop(rng: np.random.Generator, side: int) -> FloatArray:
    """Draw a wall with uneven light and a few objects, some of them rods and discs as wide as fingers and hands."""
    level, across, down = rng.uniform(0.1, 0.6), rng.uniform(-0.25, 0.25), rng.uniform(-0.25, 0.25)
    axis = np.linspace(-0.5, 0.5, side)
    wall = level + across * axis[None, :] + down * axis[:, None]
    wall = wall + rng.uniform(0.01, 0.07) * _smooth_noise(rng, side, int(rng.integers(3, 9)))
    picture = Image.fromarray(wall.astype(np.float32))
    draw = ImageDraw.Draw(picture)
    for _ in range(int(rng.integers(0, 4))):
        grey = float(np.clip(level + rng.normal(0, 0.22), 0.03, 0.97))
        x, y, w, h = rng.uniform(0, side, 4)
        kind = rng.integers(0, 3)
        if kind == 0:
            draw.line((x, y, w, h), fill=grey, width=max(1, int(side * rng.uniform(0.01, 0.09))))
        elif kind == 1:
            radius_x, radius_y = side * rng.uniform(0.03, 0.22, 2)
            draw.ellipse((x - radius_x, y - radius_y, x + radius_x, y + radius_y), fill=grey)
        else:
            corners = [(float(p), float(q)) for p, q in np.array([x, y]) + rng.uniform(-0.35, 0.35, (4, 2)) * side]
            draw.polygon(corners, fill=grey)
    return _blur(np.asarray(picture, np.float64), side * rng.uniform(0.002, 0.02))


def _expose(scene: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Apply the vignette, contrast and gamma of a random camera."""
    side = scene.shape[0]
    axis = np.linspace(-1, 1, side) ** 2
    vignette = 1 - rng.uniform(0, 0.3) * (axis[None, :] + axis[:, None]) / 2
    graded = (np.clip(scene * vignette, 0, 1) - 0.5) * rng.uniform(0.65, 1.15) + rng.uniform(0.4, 0.6)
    exposed: FloatArray = np.clip(graded, 0, 1) ** rng.uniform(0.8, 1.3)
    return exposed


def _smooth_noise(rng: np.random.Generator, side: int, cells: int) -> FloatArray:
    """Return noise of about unit variance that varies over ``side / cells`` pixels."""
    coarse = Image.fromarray(rng.normal(0, 1, (cells, cells)).astype(np.float32))
    return np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), np.float64)


def _blur(image: FloatArray, sigma: float) -> FloatArray:
    """Blur a float picture like a Gaussian, by two passes of a box of the same width, repeating the edges."""
    width = round(math.sqrt(6 * sigma**2 + 1)) // 2
    for _ in range(2 if width else 0):
        for axis in (0, 1):
            padding = [(0, 0), (0, 0)]
            padding[axis] = (width + 1, width)
            total = np.cumsum(np.pad(image, padding, mode="edge"), axis=axis)
            upper = np.take(total, range(2 * width + 1, total.shape[axis]), axis=axis)
            lower = np.take(total, range(total.shape[axis] - 2 * width - 1), axis=axis)
            image = (upper - lower) / (2 * width + 1)
    return image
