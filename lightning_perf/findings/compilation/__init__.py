"""Rules about the compilations of a fit by ``torch.compile``."""
