"""Statistics of repeated runs: pure functions over one number per run. Each result is a frozen value.

A figure that cannot be computed is `None` with a reason, never a number that looks like a result.
"""
