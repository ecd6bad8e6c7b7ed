"""The cost of recording, watching and loading to a training."""
