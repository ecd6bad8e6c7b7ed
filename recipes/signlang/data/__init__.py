"""Read a dataset of pictures, split it and feed it to a training."""
