"""`Count`: what one forward pass of a model takes, layer by layer. Plain values: reading them needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Count", "LayerCount"]


@dataclass(frozen=True)
class LayerCount:
    """What one layer takes in one forward pass.

    A layer is a module whose own code ran operators: a convolution, or a block for the addition in its ``forward``.
    What its sub-modules do counts for them. A module that runs more than once has one row with the sum.

    Attributes:
        path: As in ``named_modules()``; empty for the model itself.
        kind: Name of its class.
        calls: Times that it ran.
        output_shape: Of its first output tensor in the last call, with the batch; empty when it returns none.
        macs: Multiply-accumulates of matrix products, convolutions and attention.
        flops: Floating-point operations of the same: 2 for a multiply-accumulate.
        parameters: Numbers in the parameters that it was the first to use.
        bytes_moved: Its inputs, outputs, and the parameters and buffers that it used, each once a call: what it
            reads and writes when nothing of its neighbours is in a cache.
        arithmetic_intensity: ``flops / bytes_moved``; None when nothing is moved.
        uncounted: Operators in it that no formula is known for; `flops` lacks what they take.
    """

    path: str
    kind: str
    calls: int
    output_shape: tuple[int, ...]
    macs: int
    flops: int
    parameters: int
    bytes_moved: int
    arithmetic_intensity: float | None
    uncounted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Count:
    """What one forward pass of a model takes.

    The convention: one multiply-accumulate (MAC) is two floating-point operations (FLOPs). Counted are matrix
    products, convolutions and attention. Biases, normalisation, activations, pooling and other element by element work
    count zero, as is usual: they are a few per cent of the arithmetic, and their time is their memory traffic, which
    `LayerCount.bytes_moved` has.

    Attributes:
        input_shape: With the batch.
        output_shape: With the batch; empty when the model returns no tensor.
        layers: In the order of their first call. Their figures sum to those of the model.
        macs: Multiply-accumulates.
        flops: Floating-point operations, ``2 * macs``.
        parameters: Numbers in all parameters, shared ones once.
        unused_parameters: Of these, in parameters that the forward pass does not touch.
        size_bytes: Parameters and buffers in memory, shared ones once.
        bytes_moved: Sum over the layers: memory traffic when each layer reads and writes memory.
        compulsory_bytes: Used parameters and buffers, the input and the output, each once: what any execution must
            read and write, however well it fuses.
        arithmetic_intensity: ``flops / bytes_moved``; None when nothing is moved.
    """

    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    layers: tuple[LayerCount, ...]
    macs: int
    flops: int
    parameters: int
    unused_parameters: int
    size_bytes: int
    bytes_moved: int
    compulsory_bytes: int
    arithmetic_intensity: float | None

    @property
    def uncounted(self) -> tuple[LayerCount, ...]:
        """Layers with operators that no formula is known for; not empty means that `flops` is too low."""
        return tuple(layer for layer in self.layers if layer.uncounted)
