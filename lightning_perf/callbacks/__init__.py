"""What a Trainer is given."""
