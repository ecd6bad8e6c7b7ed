"""Complete, runnable trainings that show the library on a real task."""
