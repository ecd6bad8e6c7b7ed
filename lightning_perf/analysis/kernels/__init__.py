"""The device's computing: kernels, arithmetic, Tensor Cores, efficiency."""
