"""A loaded variant that checks what goes in and what comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_perf.inference.errors import InferenceError
from lightning_perf.inference.subject import shape_text

if TYPE_CHECKING:
    from lightning_perf.inference.runtime import Call

__all__ = ["CheckedCall"]


class CheckedCall:
    """Calls a variant and refuses a wrong input or output.

    Compiled packages do not check by themselves: one that AOTInductor made for batch 1 takes a batch of 2 and gives
    back a single row, without a word.

    Args:
        call: The variant.
        input_shape: Shape of one input, without the batch.
        output_shape: Shape of one output, without the batch.
    """

    def __init__(self, call: Call, input_shape: tuple[int, ...], output_shape: tuple[int, ...]) -> None:
        self._call = call
        self.input_shape = input_shape
        self.output_shape = output_shape

    def __call__(self, inputs: Tensor) -> Tensor:
        """Run the variant.

        Args:
            inputs: ``(n, …)``, float32.

        Returns:
            ``(n, …)``, float32.

        Raises:
            InferenceError: The inputs are of another shape or type, or the variant gave back another shape.
        """
        if tuple(inputs.shape[1:]) != self.input_shape or inputs.ndim == 0:
            raise InferenceError(
                f"inputs of shape {tuple(inputs.shape)} given, the variant takes {shape_text(self.input_shape)}"
            )
        if inputs.dtype != torch.float32:
            raise InferenceError(f"inputs of type {inputs.dtype} given, the variant takes torch.float32")
        outputs = self._call(inputs)
        wanted_shape = (len(inputs), *self.output_shape)
        if tuple(outputs.shape) != wanted_shape or outputs.dtype != torch.float32:
            raise InferenceError(
                f"the variant gave {tuple(outputs.shape)} of {outputs.dtype} for a batch of {len(inputs)}, "
                f"not {wanted_shape} of torch.float32: it does not support this batch size"
            )
        return outputs
