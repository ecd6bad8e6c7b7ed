"""Methods that are replaced during a fit: those of single objects, and `DataLoader.__iter__`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

from torch.utils.data import DataLoader


class WrappedMethods:
    """Replaces methods of objects, and gives the objects their own methods back later."""

    def __init__(self) -> None:
        self._wrapped: list[tuple[Any, str, Any, Any]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace a method of one object. Nothing happens if it has no such method or admits no attributes."""
        method = getattr(owner, name, None)
        if not callable(method) or not hasattr(owner, "__dict__"):
            return
        wrapper = functools.wraps(method)(make(method))
        own = vars(owner).get(name)
        try:
            setattr(owner, name, wrapper)
        except AttributeError:
            return
        self._wrapped.append((owner, name, wrapper, own))

    def restore(self) -> None:
        """Undo all replacements, except where something else has replaced ours since. It then only passes calls on."""
        while self._wrapped:
            owner, name, wrapper, own = self._wrapped.pop()
            if vars(owner).get(name) is not wrapper:
                continue
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


class LoaderObserver(Protocol):
    """Follows the starts of data loaders with worker processes."""

    def iterate(self, loader: Any, make: Callable[[Any], Any]) -> Any:
        """Make the iterator of a loader with `make`, and return it."""


class LoaderStarts:
    """Notifies observers when a `DataLoader` with worker processes makes an iterator, which starts its workers.

    The Trainer announces no such moment, so ``DataLoader.__iter__`` is replaced while anyone observes.
    """

    def __init__(self) -> None:
        self._observers: list[LoaderObserver] = []
        self._own: Any = None
        self._wrapper: Any = None

    def add(self, observer: LoaderObserver) -> None:
        """Notify an observer, the last one first, until it is removed."""
        self._observers.append(observer)
        if self._wrapper is not None:
            return
        own, observers = DataLoader.__iter__, self._observers

        @functools.wraps(own)
        def __iter__(loader: Any) -> Any:  # noqa: N807
            if not observers or not loader.num_workers:
                return own(loader)
            return observers[-1].iterate(loader, own)

        self._own, self._wrapper = own, __iter__
        DataLoader.__iter__ = __iter__  # type: ignore[method-assign]

    def remove(self, observer: LoaderObserver) -> None:
        """Stop to notify an observer, and restore the method after the last one."""
        if observer in self._observers:
            self._observers.remove(observer)
        # If somebody else has replaced the method since, ours stays below theirs and passes calls on.
        if not self._observers and self._wrapper is not None and DataLoader.__iter__ is self._wrapper:
            DataLoader.__iter__ = self._own  # type: ignore[method-assign]
            self._own = self._wrapper = None
