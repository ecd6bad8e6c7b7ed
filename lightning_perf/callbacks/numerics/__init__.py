"""Monitors of a mixed-precision fit: loss scale, overflows, underflow, and a replay in FP32."""
