"""Load a pickle of plain values, and refuse any other pickle.

A pickle can name any function and call it while it loads. This reader looks up no name, so a file that somebody sent
you runs no code.
"""

from __future__ import annotations

import gc
import io
import pickle
from typing import NoReturn

_DAMAGED = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""The exceptions of an unpickler that reads damaged data."""


class NotPlainError(Exception):
    """The pickle is damaged, or holds an object that is not a plain value. The message says which, as a clause."""


def load_plain_pickle(data: bytes) -> object:
    """Load a pickle that consists of containers, text, numbers, booleans and None only.

    Example:
        >>> load_plain_pickle(pickle.dumps({"segments": [1, 2.5, None]}))
        {'segments': [1, 2.5, None]}
        >>> load_plain_pickle(pickle.dumps(print))
        Traceback (most recent call last):
            ...
        lightning_perf.memory_snapshot.plain_pickle.NotPlainError: it holds the Python object 'builtins.print'
    """
    collecting = gc.isenabled()
    gc.disable()  # a snapshot has millions of containers, and none of them is garbage yet
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except _DAMAGED as error:
        ends = isinstance(error, EOFError) or "truncated" in str(error)
        raise NotPlainError("it ends early" if ends else f"it is no valid pickle ({error})") from error
    finally:
        if collecting:
            gc.enable()


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Refuse the name of a class or function."""
        raise NotPlainError(f"it holds the Python object '{module_name}.{global_name}'")

    def persistent_load(self, _identity: object, /) -> NoReturn:
        """Refuse a reference to an object outside the pickle."""
        raise NotPlainError("it refers to an object outside the file")
