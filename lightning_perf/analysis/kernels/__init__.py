"""What the device computed: kernels, arithmetic, Tensor Cores, efficiency."""
