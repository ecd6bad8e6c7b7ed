"""Values that a test knows to be there."""

from typing import TypeVar

_Value = TypeVar("_Value")


def known(value: _Value | None) -> _Value:
    """The value itself; fails the test without one."""
    assert value is not None
    return value
