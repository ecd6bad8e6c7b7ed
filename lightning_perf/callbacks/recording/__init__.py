"""Windows of `torch.profiler`: which steps they record, how, and what they may cost."""
