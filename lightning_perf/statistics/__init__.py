"""Statistics of repeated runs: pure functions over a number a run, each result a frozen value.

What cannot be computed is `None` with a reason beside it, never a number that looks like one.
"""
