"""The levers: changes that the tuner can try on a training, one module per topic."""
