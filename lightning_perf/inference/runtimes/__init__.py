"""What executes a model: one way a file."""
