"""What recording, watching and loading cost a training."""
