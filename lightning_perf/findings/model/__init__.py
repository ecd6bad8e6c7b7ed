"""Rules about the model and its batches: padding, attention, gradient checkpointing."""
