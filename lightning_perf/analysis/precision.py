"""Which precision a run trained in, and which FP32 it was: the values that the report shows."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Fp32Arithmetic", "PrecisionSetting"]


@dataclass(frozen=True)
class Fp32Arithmetic:
    """What "FP32" means for matrix products and convolutions in this process.

    From Ampere on, NVIDIA GPUs can round the inputs of FP32 products to TF32 (10 bits of mantissa) and use Tensor
    Cores. torch does so for convolutions unless told otherwise, and for matrix products only when told to
    (https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices).

    Attributes:
        device_has_tf32: Whether the device has TF32 at all; the flags below mean nothing where it has not.
        tf32_matmul: Whether the flags allow TF32 in matrix products.
        tf32_convolution: Whether the flags allow TF32 in convolutions.
    """

    device_has_tf32: bool
    tf32_matmul: bool
    tf32_convolution: bool

    def __str__(self) -> str:
        """Say which FP32 it is.

        Example:
            >>> print(Fp32Arithmetic(device_has_tf32=True, tf32_matmul=False, tf32_convolution=True))
            FP32 is TF32 in convolutions and true FP32 in matrix products
            >>> print(Fp32Arithmetic(device_has_tf32=False, tf32_matmul=False, tf32_convolution=True))
            FP32 is true FP32 (the device has no TF32)
        """
        if not self.device_has_tf32:
            return "FP32 is true FP32 (the device has no TF32)"
        if self.tf32_matmul == self.tf32_convolution:
            return "FP32 is TF32" if self.tf32_matmul else "FP32 is true FP32"
        first, second = ("convolutions", "matrix products")
        if self.tf32_matmul:
            first, second = second, first
        return f"FP32 is TF32 in {first} and true FP32 in {second}"


@dataclass(frozen=True)
class PrecisionSetting:
    """The precision that a run trained in, and how it came about.

    Attributes:
        precision: As Lightning names it: ``32-true``, ``16-mixed``, ``bf16-mixed``, ….
        requested: What the callback was asked for; None when it was left to the Trainer.
        switched: Whether the callback switched a Trainer that was built without mixed precision.
        weight_cache: Whether autocast keeps a weight's cast for the rest of the forward pass, so that a weight used
            more than once is cast once; None without autocast.
        keep_fp32: Names of the layers kept in FP32.
        fp32: Which FP32 it was.
        note: What else the user should know, or None.
    """

    precision: str
    requested: str | None
    switched: bool
    weight_cache: bool | None
    keep_fp32: tuple[str, ...]
    fp32: Fp32Arithmetic
    note: str | None = None
