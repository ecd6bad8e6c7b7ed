"""The hand pose of each letter of the American manual alphabet, seen by the person signed to.

A table: joint angles in degrees and the thumb tip's place in hand lengths (see `recipes.signlang.synthetic.hand.Pose`).
``j`` and ``z`` are movements and have no still picture.
"""

from __future__ import annotations

from recipes.signlang.synthetic.hand import Pose

__all__ = ["POSES"]

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
