"""Model a hand: five fingers on a palm, posed by joint angles, as capsules in three dimensions.

It is a right hand with its palm towards the viewer. The axes are x to the viewer's right (the thumb's side), y from the
wrist to the fingertips, and z towards the viewer. Lengths are in hand lengths: the wrist is the origin, and the tip of
the stretched middle finger is about 1 above it. Proportions follow the mean phalanx lengths of adult hands (Buryanov
and Kotiuk, "Proportions of hand segments", Int. J. Morphol. 28(3), 2010), rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_KNUCKLES = np.array([[0.135, 0.455, 0.0], [0.045, 0.475, 0.012], [-0.045, 0.455, 0.008], [-0.13, 0.405, -0.008]])
_PHALANGES = np.array([[0.225, 0.130, 0.095], [0.250, 0.155, 0.100], [0.230, 0.145, 0.100], [0.180, 0.105, 0.090]])
_FINGER_RADII = np.array([0.052, 0.053, 0.050, 0.043])
_THUMB_ROOT = np.array([0.085, 0.085, 0.02])
_THUMB_BONES = np.array([0.215, 0.165, 0.125])
_THUMB_RADII = np.array([0.070, 0.060, 0.053, 0.044])
_THUMB_AT_REST = np.array([[0.20, 0.26, 0.08], [0.26, 0.40, 0.10], [0.28, 0.50, 0.10]])
_TAPER = 0.80
"""The radius of a fingertip over the radius at its knuckle."""


@dataclass(frozen=True)
class Pose:
    """Position of the fingers.

    Attributes:
        flex: Degrees each joint is bent, one row a finger (index, middle, ring, little), one column a joint
            (knuckle, middle, end).
        spread: Degrees each finger leans towards the thumb's side.
        thumb: Where the thumb's tip wants to be, in hand lengths.
        turn: Degrees the whole hand is turned about its own axis: 90 shows its edge, fingers curling to the right.
        roll: Degrees the hand is rotated in the picture, counter-clockwise: 90 points the fingers to the left.
    """

    flex: tuple[tuple[float, float, float], ...]
    spread: tuple[float, float, float, float]
    thumb: tuple[float, float, float]
    turn: float = 0.0
    roll: float = 0.0


@dataclass(frozen=True)
class Anthropometry:
    """Proportions that differ between hands.

    Attributes:
        finger_length: Factor on the length of each of the four fingers.
        girth: Factor on all radii.
    """

    finger_length: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    girth: float = 1.0


@dataclass(frozen=True, eq=False)
class Capsules:
    """Cones with round ends, in hand lengths.

    Attributes:
        start: ``(n, 3)`` centre of each first end.
        end: ``(n, 3)`` centre of each second end.
        radius_start: ``(n,)`` radius at the first end.
        radius_end: ``(n,)`` radius at the second end.
    """

    start: FloatArray
    end: FloatArray
    radius_start: FloatArray
    radius_end: FloatArray


def build_hand(pose: Pose, body: Anthropometry) -> Capsules:
    """Pose a hand.

    Args:
        pose: The joint angles and the thumb's goal. `Pose.turn` and `Pose.roll` are the camera's business.
        body: The proportions of this hand.

    Returns:
        The capsules of forearm, palm, fingers and thumb.
    """
    parts: list[tuple[FloatArray, FloatArray, float, float]] = []
    parts.append((np.array([0.0, -1.3, -0.05]), np.array([0.005, 0.06, -0.03]), 0.165, 0.106))
    for knuckle, radius in zip(_KNUCKLES, _FINGER_RADII, strict=True):
        base = np.array([knuckle[0] * 0.45, 0.06, -0.01])
        parts.append((base, knuckle - [0.0, 0.015, 0.0], 0.085, radius * 1.22))
    for a, b in pairwise(_KNUCKLES):
        parts.append((np.array([0.01, 0.09, 0.0]), (a + b) / 2 - [0.0, 0.03, 0.0], 0.095, 0.058))
    # The ball of the little finger.
    parts.append((np.array([-0.075, 0.09, 0.025]), np.array([-0.11, 0.26, 0.02]), 0.07, 0.058))
    for finger in range(4):
        joints = _finger_joints(finger, pose, body)
        radii = _FINGER_RADII[finger] * np.array([1.0, 0.95, 0.9, _TAPER])
        parts += [(joints[i], joints[i + 1], radii[i], radii[i + 1]) for i in range(3)]
    thumb = _thumb_joints(np.asarray(pose.thumb))
    parts += [(thumb[i], thumb[i + 1], _THUMB_RADII[i], _THUMB_RADII[i + 1]) for i in range(3)]
    # The web and the ball of the thumb.
    parts.append((np.array([0.06, 0.12, 0.02]), thumb[1] * 0.85 + [0.01, 0.05, 0.0], 0.075, 0.055))
    return Capsules(
        start=np.array([p[0] for p in parts]),
        end=np.array([p[1] for p in parts]),
        radius_start=np.array([p[2] for p in parts]) * body.girth,
        radius_end=np.array([p[3] for p in parts]) * body.girth,
    )


def _finger_joints(finger: int, pose: Pose, body: Anthropometry) -> FloatArray:
    """``(4, 3)``: knuckle, two joints and the tip, by bending each bone further towards the palm."""
    lean = np.radians(pose.spread[finger])
    bent = np.radians(np.cumsum(pose.flex[finger]))
    lengths = _PHALANGES[finger] * body.finger_length[finger]
    along = np.stack([np.sin(lean) * np.cos(bent), np.cos(lean) * np.cos(bent), np.sin(bent)], axis=1)
    joints: FloatArray = np.vstack([np.zeros(3), np.cumsum(along * lengths[:, None], axis=0)]) + _KNUCKLES[finger]
    return joints


def _thumb_joints(goal: FloatArray, iterations: int = 12) -> FloatArray:
    """``(4, 3)``: root, two joints and the tip, reaching for the goal with fixed bone lengths.

    FABRIK (Aristidou and Lasenby, Graphical Models 73, 2011): walk the chain back from the goal, then forth from the
    root, restoring the lengths, until it settles.
    """
    chain = np.vstack([_THUMB_ROOT, _THUMB_AT_REST])
    # Start bent to the outer side, so that the joints never fold into the palm.
    chain[1:3, 0] += 0.05
    for _ in range(iterations):
        chain[3] = goal
        for i in (2, 1, 0):
            chain[i] = chain[i + 1] + _unit(chain[i] - chain[i + 1]) * _THUMB_BONES[i]
        chain[0] = _THUMB_ROOT
        for i in (0, 1, 2):
            chain[i + 1] = chain[i] + _unit(chain[i + 1] - chain[i]) * _THUMB_BONES[i]
    return chain


def _unit(vector: FloatArray) -> FloatArray:
    unit: FloatArray = vector / max(float(np.linalg.norm(vector)), 1e-9)
    return unit


_STRAIGHT = (3.0, 5.0, 3.0)
_FIST = (82.0, 100.0, 65.0)
_CURVED = (42.0, 42.0, 28.0)
_CLOSED = (55.0, 58.0, 38.0)
_CLAW = (38.0, 112.0, 62.0)
_DRAPED = (84.0, 62.0, 22.0)
_TUCKED = (68.0, 88.0, 50.0)
_HOOK = (12.0, 88.0, 58.0)

_TOGETHER = (0.0, 0.0, 0.0, 0.0)

_BESIDE = (0.245, 0.53, 0.06)
_FRONT_OF_FIST = (-0.02, 0.37, 0.29)
_OVER_RING = (-0.05, 0.38, 0.26)
_OVER_LITTLE = (-0.13, 0.36, 0.23)
_ACROSS_PALM = (-0.06, 0.34, 0.13)
_OUT = (0.50, 0.27, 0.06)

POSES: dict[str, Pose] = {
    "a": Pose((_FIST, _FIST, _FIST, _FIST), _TOGETHER, _BESIDE),
    "b": Pose((_STRAIGHT, _STRAIGHT, _STRAIGHT, _STRAIGHT), (-1, 0, 1, 3), _ACROSS_PALM),
    "c": Pose((_CURVED, _CURVED, _CURVED, _CURVED), _TOGETHER, (0.10, 0.28, 0.44), turn=68),
    "d": Pose((_STRAIGHT, _CLOSED, _CLOSED, _CLOSED), (2, 0, 0, 0), (0.06, 0.50, 0.33), turn=30),
    "e": Pose((_CLAW, _CLAW, _CLAW, _CLAW), _TOGETHER, (-0.08, 0.35, 0.19)),
    "f": Pose(((62, 58, 22), _STRAIGHT, _STRAIGHT, _STRAIGHT), (0, 2, -6, -15), (0.14, 0.43, 0.31)),
    "g": Pose((_STRAIGHT, _FIST, _FIST, _FIST), _TOGETHER, (0.26, 0.60, 0.16), turn=12, roll=90),
    "h": Pose((_STRAIGHT, _STRAIGHT, _FIST, _FIST), (-1, 1, 0, 0), _OVER_RING, turn=12, roll=90),
    "i": Pose((_FIST, _FIST, _FIST, _STRAIGHT), (0, 0, 0, -8), _FRONT_OF_FIST),
    "k": Pose((_STRAIGHT, (38, 6, 4), _FIST, _FIST), (9, -5, 0, 0), (0.09, 0.58, 0.17)),
    "l": Pose((_STRAIGHT, _FIST, _FIST, _FIST), (2, 0, 0, 0), _OUT),
    "m": Pose((_DRAPED, _DRAPED, _DRAPED, _FIST), _TOGETHER, (-0.14, 0.43, 0.17)),
    "n": Pose((_DRAPED, _DRAPED, _FIST, _FIST), _TOGETHER, (-0.02, 0.47, 0.20)),
    "o": Pose((_CLOSED, _CLOSED, _CLOSED, _CLOSED), _TOGETHER, (0.06, 0.44, 0.40), turn=62),
    "p": Pose((_STRAIGHT, (48, 6, 4), _FIST, _FIST), (9, -5, 0, 0), (0.09, 0.58, 0.17), turn=20, roll=142),
    "q": Pose((_STRAIGHT, _FIST, _FIST, _FIST), _TOGETHER, (0.26, 0.60, 0.18), turn=28, roll=160),
    "r": Pose((_STRAIGHT, (14, 8, 4), _FIST, _FIST), (-9, 13, 0, 0), _OVER_RING),
    "s": Pose((_FIST, _FIST, _FIST, _FIST), _TOGETHER, _FRONT_OF_FIST),
    "t": Pose((_TUCKED, _FIST, _FIST, _FIST), _TOGETHER, (0.085, 0.545, 0.19)),
    "u": Pose((_STRAIGHT, _STRAIGHT, _FIST, _FIST), (-2, 2, 0, 0), _OVER_RING),
    "v": Pose((_STRAIGHT, _STRAIGHT, _FIST, _FIST), (14, -12, 0, 0), _OVER_RING),
    "w": Pose((_STRAIGHT, _STRAIGHT, _STRAIGHT, _FIST), (14, 0, -14, 0), _OVER_LITTLE),
    "x": Pose((_HOOK, _FIST, _FIST, _FIST), (2, 0, 0, 0), _OVER_RING, turn=25),
    "y": Pose((_FIST, _FIST, _FIST, _STRAIGHT), (0, 0, 0, -22), (0.48, 0.40, 0.06)),
}
