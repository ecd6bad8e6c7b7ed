"""`PerfReport`, the versioned document, and its content as blocks."""
