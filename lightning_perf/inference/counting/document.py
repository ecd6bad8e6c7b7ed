"""`Count`: operations, parameters and bytes of a forward pass by layer. Reading it needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerCount:
    """The counts of one layer in one forward pass.

    A layer is a module with operators in its own ``forward``: a convolution, or a residual block for its addition. The
    operators of its submodules count for the submodules. A module that runs more than once has one row with the sum.

    Attributes:
        path: Name in ``named_modules()``; empty for the model itself.
        kind: Name of the class.
        calls: Number of calls.
        output_shape: Shape of the first output tensor in the last call, with the batch; empty if it returns no tensor.
        macs: Multiply-accumulates of matrix products, convolutions and attention.
        flops: Floating-point operations of the same: 2 per multiply-accumulate.
        parameters: Elements of the parameters that this layer was the first to use.
        bytes_moved: Bytes of its inputs, its outputs, and the parameters and buffers that it used, each once per call:
            its memory traffic if no cache holds data of its neighbours.
        arithmetic_intensity: ``flops / bytes_moved``; None if no bytes are moved.
        uncounted: Operators without a known formula; they are missing from `flops`.
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
    """The counts of one forward pass of a model.

    The convention: one multiply-accumulate (MAC) is two floating-point operations (FLOPs). Matrix products,
    convolutions and attention count. Biases, normalisation, activations, pooling and other element-wise work count
    zero, as usual: they are a few per cent of the arithmetic. Their time comes from memory traffic, which
    `LayerCount.bytes_moved` includes.

    Attributes:
        input_shape: Shape of the input, with the batch.
        output_shape: Shape of the output, with the batch; empty if the model returns no tensor.
        layers: Layers in the order of their first call. Their figures sum to the figures of the model.
        macs: Multiply-accumulates.
        flops: Floating-point operations, ``2 * macs``.
        parameters: Elements of all parameters; shared parameters count once.
        unused_parameters: Elements of the parameters that the forward pass does not touch.
        size_bytes: Bytes of parameters and buffers; shared ones count once.
        bytes_moved: Sum over the layers: memory traffic if each layer reads and writes memory.
        compulsory_bytes: Bytes of used parameters and buffers, the input and the output, each once. Any execution must
            move them, even if it fuses all operators.
        arithmetic_intensity: ``flops / bytes_moved``; None if no bytes are moved.
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
        """Layers with operators without a known formula; if there are any, `flops` is too low."""
        return tuple(layer for layer in self.layers if layer.uncounted)
