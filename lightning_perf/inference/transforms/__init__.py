"""What changes a model's weights or layers before a runtime takes it: one way a file."""
