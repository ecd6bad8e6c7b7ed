"""The user's training in a trial: what a trial does with it, and how Lightning and Hugging Face train it."""
