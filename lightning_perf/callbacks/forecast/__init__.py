"""Measures, during an ordinary training, how FP16, BF16, FP8, MXFP8 and NVFP4 would round each layer's tensors."""
