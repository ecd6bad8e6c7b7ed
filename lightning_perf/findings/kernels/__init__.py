"""Rules about arithmetic and memory layout on the device."""
