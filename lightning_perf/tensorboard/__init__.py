"""The TensorBoard plugin: finds runs, analyses them in the background, serves the page and its data."""
