"""Sign-language recognition: the training this project began with, end to end."""
