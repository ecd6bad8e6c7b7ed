"""Profiles training loops without a Trainer: plain PyTorch, Fabric, Accelerate."""
