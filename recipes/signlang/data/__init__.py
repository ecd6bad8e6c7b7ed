"""Read a data set of pictures, split it and feed it to a training."""
