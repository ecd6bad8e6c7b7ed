"""The tests of lightning_perf, one folder a room."""
