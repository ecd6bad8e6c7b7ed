"""The counts of a forward pass by layer, and the shortest possible time for them. Reading them needs no torch."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace


class LayerCount(Struct, frozen=True):
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


class Count(Struct, frozen=True):
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


class Peaks(Struct, frozen=True):
    """Peak rates of a device.

    Attributes:
        device: Name of the device.
        dtype: Type of the arithmetic, e.g. ``float32``.
        threads: CPU threads that share the work; None on a GPU.
        flops_per_s: Floating-point operations per second.
        bandwidth_bytes_per_s: Memory traffic, read and written, in bytes per second.
        source: Origin of the rates.
        convolution_flops_per_s: Floating-point operations per second of all layers except linear ones, if it differs:
            PyTorch computes FP32 convolutions in TF32 by default, but not FP32 matrix products. None if it is the same.
    """

    device: str
    dtype: str
    threads: int | None
    flops_per_s: float
    bandwidth_bytes_per_s: float
    source: str
    convolution_flops_per_s: float | None = None

    @property
    def measured(self) -> bool:
        """Whether the rates were measured, and are not those of a table."""
        return self.source.startswith("measured")

    def highest(self, other: Peaks) -> Peaks:
        """Return the higher rates of two measurements: other load only makes them lower."""
        return replace(
            self if self.flops_per_s >= other.flops_per_s else other,
            bandwidth_bytes_per_s=max(self.bandwidth_bytes_per_s, other.bandwidth_bytes_per_s),
        )

    def flops_per_s_of(self, kind: str) -> float:
        """Return the peak rate of a layer, given the name of its class.

        Convolutions, recurrent layers and attention have TF32 switches of their own, so only linear layers certainly
        run as matrix products. For any other layer the result is the faster rate, so that the bound remains a bound.
        """
        if self.convolution_flops_per_s is None or "Linear" in kind:
            return self.flops_per_s
        if "Conv" in kind:
            return self.convolution_flops_per_s
        return max(self.flops_per_s, self.convolution_flops_per_s)


class LayerBound(Struct, frozen=True):
    """The shortest possible time of one layer alone, with its tensors in memory.

    Attributes:
        path: As in `LayerCount`.
        kind: Name of the class.
        compute_ms: FLOPs divided by the peak rate.
        memory_ms: Bytes moved divided by the bandwidth.
        bound_ms: The larger of the two, because arithmetic and memory traffic overlap.
        limit: The larger of the two, by name.
    """

    path: str
    kind: str
    compute_ms: float
    memory_ms: float
    bound_ms: float
    limit: Literal["compute", "memory"]


class Roofline(Struct, frozen=True):
    """The shortest possible time of a forward pass (Williams, Waterman, Patterson 2009, doi:10.1145/1498765.1498785).

    It is a lower bound, not a forecast: real kernels reach only a part of either peak, and calls have overhead.
    Measured latencies are several times longer, and models rank differently by the bound than by the clock. Algorithms
    with fewer multiplications (Winograd's convolutions), arithmetic of other types (int8 against a float32 peak) and
    skipped weights can beat it.

    Attributes:
        peaks: Peak rates of the device.
        layers: The bound of each layer alone.
        compute_ms: FLOPs of each layer divided by the layer's peak rate, summed.
        memory_ms: Bytes that any execution must move, weights, input and output once, divided by the bandwidth.
        bound_ms: The larger of the two.
        layer_by_layer_ms: Sum of the layers' bounds. It is the shortest time if each layer reads and writes memory, as
            eager execution does with tensors larger than the caches. With smaller tensors, measured latencies may be
            below it.
    """

    peaks: Peaks
    layers: tuple[LayerBound, ...]
    compute_ms: float
    memory_ms: float
    bound_ms: float
    layer_by_layer_ms: float

    def efficiency(self, latency_ms: float) -> float:
        """Return the share of the peak that a measured latency reaches: the bound divided by the latency.

        Args:
            latency_ms: Measured time of the same forward pass.

        Raises:
            ValueError: The latency is not above 0.
        """
        if not latency_ms > 0:
            raise ValueError(f"a latency must be above 0, got {latency_ms}")
        return self.bound_ms / latency_ms


def bound_latency(count: Count, peaks: Peaks) -> Roofline:
    """Return the shortest possible time of a forward pass.

    Args:
        count: The counts of the forward pass.
        peaks: Peak rates of the device, for the type of arithmetic that the model uses.

    Raises:
        ValueError: A peak is not above 0.

    Example:
        >>> layer = LayerCount("fc", "Linear", 1, (1, 10), 1000, 2000, 110, 4000, 0.5)
        >>> count = Count((1, 100), (1, 10), (layer,), 1000, 2000, 110, 0, 440, 4000, 880, 0.5)
        >>> bound = bound_latency(count, Peaks("a device", "float32", 1, 1e6, 1e6, "an example"))
        >>> bound.compute_ms, bound.memory_ms, bound.bound_ms, bound.layer_by_layer_ms
        (2.0, 0.88, 2.0, 4.0)
        >>> bound.layers[0].limit, bound.efficiency(latency_ms=8.0)
        ('memory', 0.25)
    """
    if not (peaks.flops_per_s > 0 and peaks.bandwidth_bytes_per_s > 0):
        raise ValueError(f"peak rates must be above 0, got {peaks}")

    layers = []
    for layer in count.layers:
        compute_ms = 1e3 * layer.flops / peaks.flops_per_s_of(layer.kind)
        memory_ms = 1e3 * layer.bytes_moved / peaks.bandwidth_bytes_per_s
        limit: Literal["compute", "memory"] = "compute" if compute_ms > memory_ms else "memory"
        layers.append(LayerBound(layer.path, layer.kind, compute_ms, memory_ms, max(compute_ms, memory_ms), limit))
    compute_ms = sum(layer.compute_ms for layer in layers)
    memory_ms = 1e3 * count.compulsory_bytes / peaks.bandwidth_bytes_per_s
    return Roofline(
        peaks=peaks,
        layers=tuple(layers),
        compute_ms=compute_ms,
        memory_ms=memory_ms,
        bound_ms=max(compute_ms, memory_ms),
        layer_by_layer_ms=sum(layer.bound_ms for layer in layers),
    )
