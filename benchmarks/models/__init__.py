"""Inference, int8 and distillation."""
