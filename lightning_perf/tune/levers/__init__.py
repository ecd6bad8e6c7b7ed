"""The levers: changes that the tuner can try on a training, with one module per lever or family."""
