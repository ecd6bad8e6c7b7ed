"""The model to measure: where it comes from, its samples, its device."""
