"""Switching a Trainer to mixed precision, layers kept in FP32, and TF32."""
