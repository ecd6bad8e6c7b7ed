"""What can be changed about a training: a lever, or a family of them, a file."""
