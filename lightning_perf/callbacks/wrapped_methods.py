"""Methods of objects, classes and modules that are replaced during a fit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_REPLACED = "_lightning_perf_replaced"
"""Attribute of our wrappers: the wrapper itself, its `WrappedMethods`, and the entry that it replaced."""


class WrappedMethods:
    """Replaces methods, and gives their owners their own methods back later.

    Where something else has wrapped one of ours since, ours stays under it and just has to pass calls on.

    Attributes:
        active: Whether methods are replaced at present.
    """

    def __init__(self) -> None:
        self.active = False
        self._wrapped: list[tuple[Any, str, Any, Any]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace a method. Nothing happens if the owner has no such method or admits no attributes."""
        self.active = True
        method = getattr(owner, name, None)
        if not callable(method) or not hasattr(owner, "__dict__"):
            return
        wrapper = functools.wraps(method)(make(method))
        own = vars(owner).get(name)  # None if the owner only inherits the method
        setattr(wrapper, _REPLACED, (wrapper, self, own))
        with suppress(AttributeError):
            setattr(owner, name, wrapper)
            self._wrapped.append((owner, name, wrapper, own))

    def listen(self, owner: Any, name: str, listener: Callable[..., object]) -> None:
        """Call a listener with the arguments of a method before each of its calls. It must not raise."""

        def listening(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                if self.active:
                    listener(*args, **kwargs)
                return method(*args, **kwargs)

            return call

        self.wrap(owner, name, listening)

    def restore(self) -> None:
        """Undo all replacements. A second call does nothing."""
        self.active = False
        while self._wrapped:
            owner, name, wrapper, own = self._wrapped.pop()
            if vars(owner).get(name) is not wrapper:
                continue
            while self._is_left_over(own):
                own = getattr(own, _REPLACED)[2]
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

    @staticmethod
    def _is_left_over(method: Any) -> bool:
        """Return whether a method is a wrapper of ours that could not be removed from under another one."""
        wrapper, wrapped, _ = getattr(method, _REPLACED, (None, None, None))
        return wrapped is not None and wrapper is method and not wrapped.active  # others may copy the attribute
