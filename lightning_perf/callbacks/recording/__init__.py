"""Windows of `torch.profiler`: which steps they record, how, and at which cost."""
