"""Sign-language recognition: the training that this project started with, end to end."""
