"""`PerfReport`, the versioned document, and one renderer a format. No renderer computes a figure of its own."""
