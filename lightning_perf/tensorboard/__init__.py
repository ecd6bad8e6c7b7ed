"""The TensorBoard plugin. It finds runs, analyzes them in the background, and serves the page with its data."""
