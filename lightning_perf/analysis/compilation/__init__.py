"""Compilations by ``torch.compile``: their cost, their reasons, and the calls of the compiled code."""
