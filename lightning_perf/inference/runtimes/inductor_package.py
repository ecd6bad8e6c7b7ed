"""A compiled library in a file: what AOTInductor makes of an exported program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lightning_perf.inference.errors import VariantError
from lightning_perf.inference.runtime import Call
from lightning_perf.inference.runtimes.faults import quietly, reason_of, variant_errors
from lightning_perf.inference.runtimes.packages import missing_compiler, missing_package, require
from lightning_perf.inference.runtimes.torch_export import tracing
from lightning_perf.inference.runtimes.torch_module import module_call

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["PACKAGE_FILE", "load_package", "require_build_tools", "write_package"]

PACKAGE_FILE = "model.pt2"


def require_build_tools(device: torch.device) -> None:
    """Make sure that a package can be built here.

    Raises:
        VariantError: A compiler is missing.
    """
    require(missing_compiler(), missing_package("triton", "triton") if device.type == "cuda" else None)


def write_package(program: ExportedProgram, folder: Path) -> None:
    """Compile a program, with its weights frozen into it.

    The number of threads is left to the process that runs it: TorchInductor writes the builder's into its loops if not
    told otherwise (``cpp.dynamic_threads``).

    Raises:
        VariantError: TorchInductor does not take it.
    """
    with variant_errors("AOTInductor cannot compile this model"), tracing():
        torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(folder / PACKAGE_FILE),
            inductor_configs={"freezing": True, "cpp.dynamic_threads": True},
        )


def load_package(folder: Path, device: torch.device) -> Call:
    """Load a package. It holds native code of whoever wrote it; no compiler is needed.

    Args:
        folder: Where it is.
        device: Where it runs; of the type that it was compiled for.

    Raises:
        VariantError: It cannot be loaded here, as when it was compiled for another processor.
    """
    path = folder / PACKAGE_FILE
    if not path.is_file():
        raise VariantError(f"{path} is missing")
    index = -1 if device.type == "cpu" else device.index if device.index is not None else torch.cuda.current_device()
    try:
        with quietly():
            return module_call(torch._inductor.aoti_load_package(str(path), device_index=index))
    except (RuntimeError, OSError) as error:
        raise VariantError(f"{path} cannot be loaded: {reason_of(error)}") from error
