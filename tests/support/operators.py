"""The operators of torch that run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Operators(TorchDispatchMode):
    """Tells of each operator that is called, by its name and its arguments."""

    def __init__(self, told: Callable[[str, Any], object]) -> None:
        super().__init__()
        self._told = told

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._told(func.overloadpacket.__name__, args)
        return func(*args, **(kwargs or {}))
