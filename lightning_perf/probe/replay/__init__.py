"""Runs recorded operator calls again, in a worker process and in several settings, and returns their times."""
