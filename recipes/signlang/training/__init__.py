"""The networks, their training and its checkpoints."""
