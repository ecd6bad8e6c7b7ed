"""Python imports this when it starts: each process of the tests imports Lightning in three quarters of the time.

Torchmetrics, which Lightning imports, imports torchvision, SciPy, Matplotlib and transformers wherever they are
installed. Here it finds none of them. Everybody else does.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

OPTIONAL = ("torchvision", "scipy", "matplotlib", "transformers")
TAKEN_BACK = ("_TORCHVISION_", "_SCIP", "_MATPLOTLIB_", "_TRANSFORMERS_")
FLAGS = "torchmetrics.utilities.imports"
"""The module that says by a flag for each package whether it is installed."""


class WithoutOptionalPackages:
    """Finds torchmetrics, and while that is imported no optional package."""

    importing = False

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if self.importing and name in OPTIONAL:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        spec = PathFinder.find_spec(name, path) if name in ("torchmetrics", FLAGS) else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            around = self.execute_flags if name == FLAGS else self.execute_package
            spec.loader.exec_module = lambda module: around(execute, module)  # type: ignore[method-assign]
        return spec

    def execute_package(self, execute: Any, module: ModuleType) -> None:
        self.importing = True
        try:
            execute(module)
        finally:
            self.importing = False

    def execute_flags(self, execute: Any, module: ModuleType) -> None:
        execute(module)
        taken_back = [flag for flag in vars(module) if flag.startswith(TAKEN_BACK)]
        vars(module).update(dict.fromkeys(taken_back, False))


if __name__ == "sitecustomize":  # and not when pytest looks for doctests
    sys.meta_path.insert(0, WithoutOptionalPackages())
