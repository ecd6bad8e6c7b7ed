"""Trials of a training by the Trainer that it has: that of Lightning or of Hugging Face."""
