"""Reads snapshots of ``torch.cuda.memory`` and reports who held the memory."""
